"""Looks at this machine for the checks. Everything that it makes is gone when it returns."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import json
import os
import platform
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import psutil

from torchrelay.cli.folders.folder import state_folder_problem
from torchrelay.cli.folders.journals import MEMORY
from torchrelay.cli.leading.held_port import holder
from torchrelay.cli.machine import LocalMachine
from torchrelay.cli.preflight.checks_meet import ChecksWait, meet
from torchrelay.cli.preflight.facts import (
    UNLIMITED,
    Clock,
    Compared,
    FolderFacts,
    Gpus,
    Memory,
    ProcessLimits,
    Reader,
    WorkerFacts,
)
from torchrelay.cli.preflight.meeting import MeetingPlace, compare
from torchrelay.protocol.machine.cache_folder import code_folder
from torchrelay.protocol.transport import unix_socket

CGROUP = Path("/sys/fs/cgroup")
NVIDIA_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
LOOK_S = 10.0
WORKER_S = 150.0
_UNSYNCHRONIZED = 0x40
"""STA_UNSYNC of adjtimex(2)."""
_TRIED_BYTES = 4096


class Probe:
    """Looks at this machine. `environ`: the user's environment. What takes long is looked at only once.

    `wait`: how to wait for the other machines' checks; None: none are waited for.
    """

    def __init__(self, environ: Mapping[str, str], wait: ChecksWait | None = None) -> None:
        self._environ = environ
        self._wait = wait

    def folder(self, folder: Path) -> FolderFacts:
        """Write a file into the folder, or where the folder would be made, and remove it."""
        at = folder.absolute()
        while not os.path.lexists(at) and at != at.parent:
            at = at.parent
        if not at.is_dir():
            return FolderFacts(folder, f"{at} is no folder", exists=False)
        try:
            with tempfile.TemporaryDirectory(prefix=".torchrelay-", dir=at) as made:
                (Path(made) / "tried").write_bytes(bytes(_TRIED_BYTES))
        except OSError as e:
            return FolderFacts(folder, f"nothing can be written into {at} ({e.strerror})", *_room(at))
        return FolderFacts(folder, "", *_room(at))

    def state_folder_problem(self, folder: Path) -> str:
        """Return why jobs cannot be listed in the folder, even if it can be written; empty if they can."""
        try:
            return state_folder_problem(folder)
        except OSError as e:
            return f"the state folder {folder} cannot be looked at: {e}"

    def shared_memory(self) -> FolderFacts:
        if not os.access(MEMORY, os.W_OK):
            return FolderFacts(MEMORY, exists=False)
        return self.folder(MEMORY)

    def cache_folder(self) -> FolderFacts | None:
        folder = code_folder(self._environ)
        return None if folder is None else self.folder(folder)

    def limits(self) -> ProcessLimits:
        threads = 0
        if _soft(resource.RLIMIT_NPROC) != UNLIMITED:
            threads = sum(
                p.info["num_threads"] or 0 for p in psutil.process_iter(["uids", "num_threads"]) if _is_own(p)
            )
        pids = _number(CGROUP / "pids.max")
        used = _number(CGROUP / "pids.current")
        return ProcessLimits(
            _soft(resource.RLIMIT_NOFILE), _soft(resource.RLIMIT_NPROC), threads, pids, used if used != UNLIMITED else 0
        )

    def memory(self) -> Memory:
        whole = psutil.virtual_memory()
        limit = _number(CGROUP / "memory.max")
        used = _number(CGROUP / "memory.current")
        if limit == UNLIMITED:
            return Memory(UNLIMITED, whole.total - whole.available, whole.total)
        return Memory(limit, used - _reclaimable(CGROUP / "memory.stat"), whole.total)

    def has_pidfd(self) -> bool:
        if not hasattr(os, "pidfd_open"):
            return False
        try:
            os.close(os.pidfd_open(os.getpid()))
        except OSError:
            return False
        return True

    def kernel(self) -> str:
        return platform.release()

    def loopback_problem(self) -> str:
        """Return why a connection over loopback or a unix socket fails; empty if both work."""
        try:
            with socket.create_server(("127.0.0.1", 0)) as server:
                socket.create_connection(server.getsockname(), LOOK_S).close()
            with (
                tempfile.TemporaryDirectory(prefix="tr-") as folder,
                unix_socket.reachable(os.path.join(folder, "s")) as path,
                socket.socket(socket.AF_UNIX) as server,
                socket.socket(socket.AF_UNIX) as client,
            ):
                server.bind(path)
                server.listen(1)
                client.connect(path)
        except OSError as e:
            return str(e)
        return ""

    def port_holder(self, port: int) -> str:
        """Return which process has the port, in words; empty if none has."""
        return "" if LocalMachine().port_is_free(port) else holder(port)

    def listening_problem(self, host: str, port: int) -> str:
        """Return why nothing can listen there, in words; empty if something can."""
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            with socket.socket(found[0][0], socket.SOCK_STREAM) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(found[0][4])
                tried.listen(1)
        except OSError as e:
            return holder(port) if e.errno == errno.EADDRINUSE else str(e)
        return ""

    def reader(self) -> Reader:
        """Try py-spy on a process like a rank's: as with a rank, neither is the other's child."""
        beside = Path(sys.executable).with_name("py-spy")
        program = str(beside) if beside.exists() else shutil.which("py-spy") or ""
        if not program:
            return Reader()
        with subprocess.Popen(
            [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as sleeper:
            assert sleeper.stdout is not None
            sleeper.stdout.readline()
            try:
                done = subprocess.run(
                    [program, "dump", "--nonblocking", "--json", "--pid", str(sleeper.pid)],
                    capture_output=True,
                    text=True,
                    timeout=LOOK_S,
                    check=False,
                )
                said = done.stderr.strip().splitlines()
                problem = "" if done.returncode == 0 else (said[-1] if said else f"exit code {done.returncode}")
            except (OSError, subprocess.TimeoutExpired) as e:
                problem = str(e)
            finally:
                sleeper.send_signal(signal.SIGKILL)
        return Reader(program, problem)

    def clock(self) -> Clock:
        return Clock(time.time(), Path(__file__).stat().st_mtime, _is_synchronized())

    def gpus(self) -> Gpus:
        count = LocalMachine().gpu_count()
        missing = []
        for library in NVIDIA_LIBRARIES if count else ():
            try:
                ctypes.CDLL(library)
            except OSError as e:
                missing.append(str(e))
        return Gpus(count, tuple(missing))

    def address_problem(self, host: str) -> str:
        """Return why nothing could be sent there; empty if its name is known and there is a way."""
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind, protocol) as sock:
                sock.connect(address)  # of a datagram socket: nothing is sent
        except OSError as e:
            return str(e)
        return ""

    def compared(self, place: MeetingPlace) -> Compared:
        return compare(place) if self._wait is None else asyncio.run(meet(place, self._wait))

    @cached_property
    def worker(self) -> WorkerFacts:
        """Return facts from a process that is started like a rank's."""
        try:
            done = subprocess.run(
                [sys.executable, "-m", "torchrelay.agent.worker_facts"],
                capture_output=True,
                text=True,
                env=dict(self._environ),
                timeout=WORKER_S,
                check=False,
            )
            found = json.loads(done.stdout)
        except (OSError, ValueError, subprocess.TimeoutExpired) as e:
            return WorkerFacts(str(e))
        return WorkerFacts(**found | {"backends": tuple(found.get("backends", ()))})


def _room(folder: Path) -> tuple[int, int]:
    """Return the bytes that this user can still write, and the total."""
    try:
        file_system = os.statvfs(folder)
    except OSError:
        return 0, 0
    return file_system.f_bavail * file_system.f_frsize, file_system.f_blocks * file_system.f_frsize


def _soft(limit: int) -> int:
    soft = resource.getrlimit(limit)[0]
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def _is_own(process: psutil.Process) -> bool:
    uids = process.info["uids"]
    return uids is not None and uids.real == os.getuid()


def _number(file: Path) -> int:
    """Return the number in a file; UNLIMITED if there is no such file, or if the file says so (`max`)."""
    with contextlib.suppress(OSError, ValueError):
        return int(file.read_text())
    return UNLIMITED


def _reclaimable(stat: Path) -> int:
    with contextlib.suppress(OSError, ValueError, KeyError):
        return int(dict(line.split() for line in stat.read_text().splitlines())["inactive_file"])
    return 0


def _is_synchronized() -> bool | None:
    """Return whether the clock is synchronized, as the kernel has been told; None if it cannot be asked.

    It asks adjtimex(2), which only looks here.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "adjtimex"):
        return None
    # struct timex has 208 bytes on 64-bit Linux; `modes` comes first and is 0: nothing is set. `status` lies behind four longs.
    timex = ctypes.create_string_buffer(512)
    if libc.adjtimex(timex) < 0:
        return None
    status = ctypes.c_int.from_buffer(timex, 8 + 4 * ctypes.sizeof(ctypes.c_long)).value
    return not status & _UNSYNCHRONIZED
