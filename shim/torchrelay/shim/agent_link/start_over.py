"""This process begins anew in its place: the same program, as it was started, in the same process.

Whoever has started it sees nothing of that, be it a kubelet, which would start it again only if the pod says so, or torchrun.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

from torchrelay.protocol.logs.log_lines import LogLines
from torchrelay.shim.agent_link import announced_exit

_STANDARD = 2
"""Files up to this one are passed on whatever the script has done to them."""


@dataclass(frozen=True)
class InterpreterStart:
    """How the interpreter was started."""

    argv: tuple[str, ...]
    environ: dict[str, str]
    folder: str
    files: frozenset[int]
    """That it was given, beside the standard ones."""
    mask: frozenset[int]
    """Signals that were blocked."""

    @classmethod
    def of_this(cls, environ: Mapping[str, str]) -> InterpreterStart:
        """To be called first of all; `environ`: as it was, with what is ours. Raises OSError."""
        given = frozenset(n for n in _open_files() if os.get_inheritable(n))
        mask = frozenset(int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        return cls(tuple(sys.orig_argv), dict(environ), os.getcwd(), given, mask)


def start_over(start: InterpreterStart | None, exit_code: int, log: LogLines) -> NoReturn:
    """On any thread: all the others end, and so do this process's children. Ends with `exit_code` where it cannot be done.

    `start`: None where it is not known.
    """
    if start is None:
        announced_exit.leave(exit_code)
    try:
        for child in _family(os.getpid()):
            _end(child)
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, start.mask)
        os.chdir(start.folder)
        for number in _open_files():
            if number > _STANDARD and number not in start.files:
                with contextlib.suppress(OSError):  # closed meanwhile
                    os.set_inheritable(number, False)
        os.execve(sys.executable, start.argv, start.environ)
    except OSError as e:
        log.say(f"this process cannot begin anew: {e}")
    announced_exit.leave(exit_code)


def _open_files() -> Iterator[int]:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the folder's own
            os.fstat(int(name))
            yield int(name)


def _family(pid: int) -> list[int]:
    """All that descend from it: they would take a process of the same number for their parent, and stay."""
    found = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
            found += [int(child) for child in file.read().split()]
    deeper = []
    for child in found:
        with contextlib.suppress(OSError):
            deeper += _family(child)
    return [*found, *deeper]


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
