"""Starts the training processes, sees at once when one ends, and ends them."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import BinaryIO

from torchrelay.agent.health.workers.process import process_state
from torchrelay.agent.output_streams import STDERR, STDOUT
from torchrelay.agent.processes import die_with_parent
from torchrelay.agent.processes.launch import WorkerSpec
from torchrelay.protocol.errors import FatalError
from torchrelay.protocol.names import WorkerId

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_EXIT_WHEN_ORPHANED = 125
# These are looked up before any fork: nothing in the child between fork and exec may need a lock.
_prctl = ctypes.CDLL(None, use_errno=True).prctl
_prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]


def _die_with_parent(parent_pid: int) -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the line above
        os._exit(_EXIT_WHEN_ORPHANED)


@dataclass
class TrainingProcess:
    """One training process. `exit_code` is 128 + signal where a signal ended it."""

    spec: WorkerSpec
    process: subprocess.Popen[bytes]
    fenced: bool = False
    exit_code: int = 0
    signal: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class Supervisor:
    """The training processes of a machine. `on_exit` is called once for each process, after it was collected."""

    def __init__(self, on_exit: Callable[[TrainingProcess], None]) -> None:
        self.children: dict[WorkerId, TrainingProcess] = {}
        self._on_exit = on_exit

    def start(self, spec: WorkerSpec, streams: dict[int, BinaryIO], standard_input: int = subprocess.DEVNULL) -> None:
        """Start one process, in a session of its own. Raises FatalError if the command cannot be run.

        To be called on the main thread, since the kernel ties the child's life to the thread that forked it, and before gRPC has
        started threads of its own, since what runs between fork and exec must find no lock held.
        """
        parent_pid = os.getpid()
        try:
            process = subprocess.Popen(
                spec.argv,
                env=spec.env,
                stdin=standard_input,
                stdout=streams.get(STDOUT),
                stderr=streams.get(STDERR),
                start_new_session=True,
                preexec_fn=lambda: _die_with_parent(parent_pid),
            )
        except (OSError, subprocess.SubprocessError) as e:
            raise FatalError(f"{spec.argv[0]} cannot be started: {e}") from e
        finally:
            for stream in streams.values():
                stream.close()
        self._take_in(spec, process)

    def start_late(self, spec: WorkerSpec, streams: dict[int, BinaryIO], niceness: int) -> None:
        """Start one process once there are other threads. The process itself asks to die with the agent.

        Raises FatalError if the command cannot be run.
        """
        wrapper = [sys.executable, "-I", "-S", die_with_parent.__file__]
        wrapped = [*wrapper, str(os.getpid()), str(niceness), *spec.argv]
        try:
            process = subprocess.Popen(
                wrapped,
                env=spec.env,
                stdin=subprocess.DEVNULL,
                stdout=streams.get(STDOUT),
                stderr=streams.get(STDERR),
                start_new_session=True,
            )
        except OSError as e:
            raise FatalError(f"{spec.argv[0]} cannot be started: {e}") from e
        finally:
            for stream in streams.values():
                stream.close()
        self._take_in(spec, process)

    def _take_in(self, spec: WorkerSpec, process: subprocess.Popen[bytes]) -> None:
        child = TrainingProcess(spec, process)
        self.children[spec.worker] = child
        self._watch(child)

    def forget(self, worker: WorkerId) -> bool:
        """Drop a process that has ended. Return whether it has."""
        child = self.children.get(worker)
        if child is None or not child.gone.is_set():
            return False
        del self.children[worker]
        return True

    def living(self) -> list[TrainingProcess]:
        return [c for c in self.children.values() if not c.gone.is_set()]

    async def fence(self, child: TrainingProcess) -> None:
        """Send SIGKILL to the process and its group, and wait until the process is gone."""
        if not child.gone.is_set():
            child.fenced = True
            self._signal(child, signal.SIGKILL)
            await child.gone.wait()

    async def stop(self, signal_number: int, grace_s: float) -> None:
        """Send the signal to every process that lives, and SIGKILL to those that are left after the grace."""
        living = self.living()
        for child in living:
            self._signal(child, signal_number)
            if process_state(child.process.pid) == "T":
                self._signal(child, signal.SIGCONT)  # a stopped process would sit the grace out
        gone = [asyncio.ensure_future(c.gone.wait()) for c in living]
        if gone:
            _, late = await asyncio.wait(gone, timeout=grace_s)
            for task in late:
                task.cancel()
        await self.kill()

    async def kill(self) -> None:
        """Send SIGKILL to every process that lives, and wait until all are gone."""
        for child in self.living():
            self._signal(child, signal.SIGKILL)
        await asyncio.gather(*(c.gone.wait() for c in self.living()))

    def _signal(self, child: TrainingProcess, number: int) -> None:
        # The pid cannot be another process's by now: a process that has not been collected still owns its number.
        if not child.gone.is_set():
            try:
                os.killpg(child.process.pid, number)
            except ProcessLookupError:
                log.debug("%s: the process group is gone", child.spec.worker)

    def _watch(self, child: TrainingProcess) -> None:
        loop = asyncio.get_running_loop()
        try:
            pidfd = os.pidfd_open(child.process.pid)
        except OSError:  # a kernel or a sandbox without pidfds
            threading.Thread(target=self._wait_in_thread, args=(loop, child), daemon=True).start()
            return

        def ended() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            self._collect(child)

        loop.add_reader(pidfd, ended)

    def _wait_in_thread(self, loop: asyncio.AbstractEventLoop, child: TrainingProcess) -> None:
        os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)
        loop.call_soon_threadsafe(self._collect, child)

    def _collect(self, child: TrainingProcess) -> None:
        status = os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)
        if status is not None and status.si_code != os.CLD_EXITED:
            # Its data loaders would keep its sockets open, and its peers waiting. Before it is collected, see _signal.
            self._signal(child, signal.SIGKILL)
        code = child.process.wait()
        child.signal = max(-code, 0)
        child.exit_code = code if code >= 0 else 128 - code
        child.gone.set()
        self._on_exit(child)
