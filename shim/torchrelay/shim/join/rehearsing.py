"""Rehearsals, as a spare sees them: a forked child goes a joiner's way, and the spare stays what it is.

The child begins where a joiner begins, with all that the spare has imported. It has the lowest priority, is the first to be ended
when memory gets short, and leaves no trace: its files go aside (`Staging`), and what would be seen from outside breaks it off.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.machine.memory_left import is_short
from torchrelay.protocol.machine.owned_folder import OwnedFolder
from torchrelay.protocol.messages import Gap, Rehearse, Rehearsed, ShimReport
from torchrelay.protocol.names import NO_JOINER, REHEARSAL_FAILED, REHEARSAL_OPEN
from torchrelay.protocol.transport import wire
from torchrelay.protocol.transport.readable import is_readable
from torchrelay.shim.agent_link import announced_exit
from torchrelay.shim.agent_link.link import AgentLink

_PR_SET_PDEATHSIG = 1
_LOWEST = 19
_LOOK_S = 0.25
"""How often the spare looks whether memory gets short."""
_READ_BYTES = 64 << 10


class NoLink(AgentLink):
    """The link of a child that rehearses: it must not speak for its parent, and it gets no orders."""

    def __init__(self) -> None:
        self.lost = False
        self._gone = threading.Event()

    def send(self, report: ShimReport) -> None:
        pass

    def send_and_wait(self, report: Any) -> None:
        pass

    def close(self) -> None:
        pass


class RehearsalProcess:
    """The process that rehearses. `folder`: where its journal lies, and its files go."""

    def __init__(self, order: Rehearse, pipe: int, folder: str) -> None:
        self.order = order
        self._pipe = pipe
        self.folder = folder
        self._pid = os.getpid()
        self._made: list[bytes] = []
        self.is_aside: Callable[[Any], bool] = lambda path: False
        """Whether Python's `open` opens something else in a file's place."""

    def begin(self, *, gently: bool) -> None:
        """Begin: the process dies with the spare, and changes nothing outside of its own folder.

        `gently`: at the lowest priority.
        """
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if gently:
            os.nice(_LOWEST)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # where it cannot be written, the spare's own look at the memory is what there is
        sys.dont_write_bytecode = True
        tempfile.tempdir = os.environ["TMPDIR"] = self.folder
        sys.addaudithook(self._on_event)

    def end(self, result: Rehearsed) -> NoReturn:
        """Hand over the result, and end the process with what it has started."""
        for folder in reversed(self._made):
            with contextlib.suppress(OSError):  # training has put something into it, or removed it
                os.rmdir(folder)
        data = wire.encode(result)
        while data:
            data = data[os.write(self._pipe, data) :]
        for child in _children_of(self._pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        announced_exit.leave(0)

    def break_off(self, reason: str) -> NoReturn:
        order = self.order
        self.end(Rehearsed(order.request, order.rank, order.boundary, REHEARSAL_OPEN, reason))

    def cannot(self, reason: str) -> NoReturn:
        """Report that no new process can become the rank: the shim has switched itself off here."""
        order = self.order
        text = f"rehearsal: rank {order.rank} could not be replaced: {reason}"
        gap = Gap("rehearsal", NO_JOINER, text)
        self.end(Rehearsed(order.request, order.rank, order.boundary, REHEARSAL_FAILED, reason, (gap,)))

    def _on_event(self, event: str, args: tuple[Any, ...]) -> None:  # noqa: C901 - one case for each audit event
        """Break the rehearsal off before anything is done that training, or anybody else, would see."""
        if os.getpid() != self._pid:
            return
        if event == "open":
            path, mode, flags = args
            writes = isinstance(flags, int) and flags & _WRITES and not self._may_change(path)
            if writes and (mode is None or not self.is_aside(path)):  # `os.open` has no mode
                self._stop(f"written to {_shown(path)}")
        elif event == "os.mkdir":
            name = os.path.abspath(os.fsencode(args[0]))
            if not os.path.lexists(name) and not self._may_change(name):
                self._made.append(name)  # removed again, if nothing is in it
        elif event in _CHANGES:
            named = [arg for arg in args[:2] if isinstance(arg, (str, bytes))]
            if not all(map(self._may_change, named)):
                self._stop(f"changed {_shown(named[0])} ({event})")
        elif event == "socket.bind" and isinstance(args[1], tuple) and args[1][1]:
            self._stop(f"listened at port {args[1][1]}")
        elif event in ("fcntl.flock", "fcntl.lockf"):
            if not self._may_change(_opened_as(args[0])):  # our own scratch folder is locked, too
                self._stop("locked a file")
        elif event == "socket.connect" and _is_remote(args[1]):
            self._stop(f"talked to {args[1][0]}")
        elif event in _STARTS:
            program = os.path.basename(os.fsdecode(args[0] or args[1][0]))
            if program not in _ONLY_LOOK:
                self._stop(f"started {program}")

    def _stop(self, what: str) -> NoReturn:
        self.break_off(f"set-up would have {what}, which others would see")

    def _may_change(self, path: Any) -> bool:
        """Return whether no other process can see what happens there."""
        if not isinstance(path, (str, bytes)):
            return True  # a descriptor, whose opening was looked at
        name = os.path.abspath(os.fsencode(path))
        own = (b"/dev", b"/proc", os.fsencode(self.folder), *self._made)
        return any(name.startswith(folder + b"/") or name == folder for folder in own) or not os.path.lexists(
            os.path.dirname(name)
        )


_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGES = frozenset({"os.remove", "os.rmdir", "os.rename", "os.truncate", "os.link", "os.symlink", "shutil.rmtree"})
_STARTS = frozenset({"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"})
_ONLY_LOOK = frozenset({"ldconfig", "gcc", "cc", "ld", "uname", "lscpu", "nvidia-smi", "git"})
"""Programs that imports and set-up start to ask what there is."""


def _shown(path: Any) -> str:
    return os.fsdecode(path)


def _opened_as(descriptor: int) -> str:
    """Return the path of what a descriptor has open, or a path that no process has opened."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return "/"


def _is_remote(address: Any) -> bool:
    if not isinstance(address, tuple) or not isinstance(address[0], str):
        return False
    host = address[0]
    return not (host.startswith("127.") or host in ("::1", "localhost", "", "0.0.0.0", os.uname().nodename))


def _children_of(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


class Rehearsing:
    """The spare's side. `begin` is called on the main thread, which the child needs; `end` on any."""

    def __init__(self, send: Callable[[ShimReport], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._running: tuple[int, int] | None = None
        """The request, and the child's process."""
        self.is_forking = False
        """While it is, what is registered for forked children leaves this one alone."""

    def begin(self, order: Rehearse) -> RehearsalProcess | None:
        """Return the child, in the process that is one; None in the spare."""
        self.end()
        try:
            folder = OwnedFolder("rehearsal")
        except OSError as e:  # a file system that is read-only, or full
            reason = f"there is no place for its files: {e}"
            self._send(Rehearsed(order.request, order.rank, order.boundary, REHEARSAL_OPEN, reason))
            return None
        reading, writing = os.pipe()
        self.is_forking = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the spare's wait, and hold no lock
            pid = os.fork()
        self.is_forking = False
        if pid == 0:
            os.close(reading)
            return RehearsalProcess(order, writing, str(folder.path))
        os.close(writing)
        with self._lock:
            self._running = (order.request, pid)
        threading.Thread(
            target=self._follow, args=(order, pid, reading, folder), name="torchrelay-rehearsal", daemon=True
        ).start()
        return None

    def end(self, request: int | None = None) -> None:
        """End the child that rehearses, if there is one and it is of this request."""
        with self._lock:
            if self._running is not None and request in (None, self._running[0]):
                os.kill(self._running[1], signal.SIGKILL)  # not collected yet, so the number is its own

    def _follow(self, order: Rehearse, pid: int, reading: int, folder: OwnedFolder) -> None:
        data = b""
        short = False
        while True:
            if not is_readable(reading, _LOOK_S):
                if is_short():
                    short = True
                    self.end(order.request)
                continue
            more = os.read(reading, _READ_BYTES)
            if not more:
                break
            data += more
        with self._lock:
            self._running = None
            status = os.waitpid(pid, 0)[1]
        os.close(reading)
        folder.remove()
        self._send(_result(order, data, status, short))


def _result(order: Rehearse, data: bytes, status: int, short: bool) -> Rehearsed:
    try:
        result = wire.decode(data[wire.HEAD_BYTES :], wire.REPORTS) if data else None
    except FrameError:
        result = None
    if isinstance(result, Rehearsed):
        return result
    if short:
        reason = "memory was getting short"
    elif os.WIFSIGNALED(status):
        reason = f"its process was killed by signal {os.WTERMSIG(status)}"
    else:
        reason = f"its process ended with exit code {os.WEXITSTATUS(status)} before the training loop"
    return Rehearsed(order.request, order.rank, order.boundary, REHEARSAL_OPEN, reason)
