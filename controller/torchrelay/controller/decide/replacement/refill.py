"""Is one more spare made now, where, and why (not)? And which of those that are there are of no use any more?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchrelay.controller.decide.replacement.respawn import HOUR_S

MOST_UNUSED = 6
"""So many spares that came to nothing within an hour: whatever ends them would end the next one, too."""
FIRST_PAUSE_S = 2.0
"""After the first of them; then twice as long each time."""
IDLE_S = 120.0
"""How long a spare may take to import torch while it gives way to training; then it runs as any other."""
WARM_S = 180.0
"""How long it may take after that."""
PING_EVERY_S = 15.0
SILENT_S = 30.0
"""How long a spare may leave a ping without an answer while it gives way to training; then it runs as any other."""
SILENT_FOR_GOOD_S = 45.0
STOPPED_S = 10.0


@dataclass(frozen=True)
class VacatedPlace:
    """Where a process has ended, and no other has taken its place. `worker`: that process, or a GPU that nobody has used; empty:
    the place is new, for a spare that was asked for.

    `unusable`: why nothing must run there, or empty. `spares`: how many are on that machine, made or in the making; `at_start`: how
    many it is to have.
    """

    worker: str
    node: str
    unusable: str = ""
    spares: int = 0
    at_start: int = 0


@dataclass(frozen=True)
class Pool:
    """`wanted`: how many there are to be; `there`: that are there, ready or still importing, or asked for. `busy`: what goes on
    that must not be disturbed. `unused_s`: when spares came to nothing, with the latest one's story in `unused`.
    """

    wanted: int
    there: int
    places: Sequence[VacatedPlace] = ()
    busy: str = ""
    unused_s: Sequence[float] = ()
    unused: str = ""


@dataclass(frozen=True)
class Make:
    """On the machine `node`, in the place of `worker`, or in a new one if that is empty."""

    node: str
    worker: str


@dataclass(frozen=True)
class MakeNone:
    """`reason` is empty where there are as many as there are to be."""

    reason: str = ""


def refill(pool: Pool, now_s: float) -> Make | MakeNone:
    """One at a time: the next one is asked for when this one is known."""
    if pool.there >= pool.wanted:
        return MakeNone()
    if pool.busy:
        return MakeNone(pool.busy)
    recent = [at_s for at_s in pool.unused_s if now_s - at_s < HOUR_S]
    if len(recent) >= MOST_UNUSED:
        return MakeNone(f"{len(recent)} spares came to nothing within the hour, the latest one: {pool.unused}")
    if recent and now_s < max(recent) + FIRST_PAUSE_S * 2 ** (len(recent) - 1):
        return MakeNone(f"the latest spare came to nothing ({pool.unused}), and the next one is made a little later")
    usable = [p for p in pool.places if not p.unusable]
    if not usable:
        barred = sorted({f"{p.node}: {p.unusable}" for p in pool.places})
        return MakeNone("no place is free for one" + (f": {'; '.join(barred)}" if barred else ""))
    chosen = min(usable, key=lambda p: (p.spares - p.at_start, p.node, p.worker))
    return Make(chosen.node, chosen.worker)


@dataclass(frozen=True)
class SeenSpare:
    """One spare. `since_s`: how long it has been there, `raised_s`: how long it has run as any other (None: it gives way).

    `silent_s`: how long a ping has been without an answer; `stopped_s`: how long the kernel has not let it run.
    """

    worker: str
    warm: bool
    since_s: float
    raised_s: float | None
    silent_s: float = 0.0
    stopped_s: float = 0.0
    disabled: str = ""


@dataclass(frozen=True)
class Care:
    """`end`: why it is to be ended, and replaced; `hurry`: whether it has given way to training for too long."""

    end: str = ""
    hurry: bool = False


def look_after(s: SeenSpare) -> Care:
    if s.disabled:
        return Care(f"it cannot be used: {s.disabled}")
    if s.stopped_s >= STOPPED_S:
        return Care(f"it has been stopped for {s.stopped_s:.0f} s")
    if not s.warm:
        if s.raised_s is None:
            return Care(hurry=s.since_s >= IDLE_S)
        return Care(f"it was not ready after {s.since_s:.0f} s" if s.raised_s >= WARM_S else "")
    if s.silent_s >= SILENT_FOR_GOOD_S and s.raised_s is not None:
        return Care(f"it has not answered for {s.silent_s:.0f} s")
    return Care(hurry=s.silent_s >= SILENT_S and s.raised_s is None)
