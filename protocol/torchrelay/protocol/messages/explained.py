"""What a training process was doing, and whether its peers can be reached: asked for where it seems to hang."""

from __future__ import annotations

from torchrelay.protocol.messages.message import message


@message(frozen=True)
class LinkState:
    """One TCP connection of the communicators, as this end of it sees it: `local` and `remote` are `host:port`.

    `unanswered_s`: how long the peer's kernel has not acknowledged what it was sent, at least; 0 where nothing is overdue.
    `probed_s`: for how long it has been asked every second whether it is there, so that an idle connection tells something too.
    `silent_s`: since it acknowledged anything. `quiet_s`: since data went over it, either way; 0 where a job's ranks talk over
    other ways as well, such as a device's own.
    """

    local: str
    remote: str
    unanswered_s: float
    probed_s: float
    silent_s: float
    quiet_s: float = 0.0


@message(frozen=True)
class Explained:
    """What the training thread of this process was doing, asked for with `Explain`.

    `stack`: innermost call first, as `function (file:line)`. `motion`: `moving`, `circling` (code runs, and nothing that it could
    see changes), `still` (inside one call all the time), or empty where it was not watched. `source`: who looked. `asleep`, of
    the agent: every thread of the process and of its children waits for another one of them, so that nothing from outside can
    wake it: no disk, no network, no clock. `may_be_woken`: its training thread waits for a clock or another program, or another
    of its threads for peers, or the process is connected to a program that is not of the job. `own_sockets`, for the agent alone:
    those of the job's own connections. `links`: whether its peers can be reached. `in_own_code`: it counts as waiting as a whole,
    as in a backward, and stands still in code of the script's that is called there, in no communication. `keeps_lock`, of the
    agent: its training thread sleeps in C code and keeps the interpreter's lock, for which others wait. `locked`, of the agent:
    its training thread waits for a lock without a time limit, and it has no GPU open, for which threads may wait in the same way.
    """

    request: int
    stack: tuple[str, ...]
    motion: str
    source: str
    asleep: bool = False
    links: tuple[LinkState, ...] = ()
    in_own_code: bool = False
    keeps_lock: bool = False
    may_be_woken: bool = False
    own_sockets: tuple[str, ...] = ()
    locked: bool = False
