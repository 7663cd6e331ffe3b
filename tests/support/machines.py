"""Several machines, as commands of their own on loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from support.cli_harness import SECRET, TIMEOUT_S, Cli
from support.footprint import children_of
from support.network import Network
from support.ports import free_port
from support.relay_run import read_events
from support.training import SCRIPTS
from torchrelay.protocol.names import ENV_WORKER

SHARED = {"TORCHRELAY_SECRET": SECRET, "OMP_NUM_THREADS": "1"}


class Fleet:
    """`len(spares)` machines with `local_ranks` each, and so many spares as `spares` says; the first one leads at first.

    Each command writes its own file of events. With a `network` each machine is one of its. `own_files`: by machine, a file of its
    own and where it lies there; takes root.
    """

    def __init__(
        self,
        cli: Cli,
        *options: str,
        spares: Sequence[int],
        script: str,
        local_ranks: int = 1,
        network: Network | None = None,
        arguments: Sequence[str] = (),
        own_files: Mapping[int, tuple[Path, Path]] | None = None,
        **environment: str,
    ) -> None:
        self._own_files = own_files or {}
        self._cli, self._options, self._spares = cli, options, spares
        self._local_ranks, self._environment = local_ranks, SHARED | environment
        self._network = network
        self.out = cli.folder / "out"
        self.out.mkdir()
        self._script = [str(SCRIPTS / script), str(self.out), *arguments]
        self._ports = [free_port() for _ in spares] if network is None else [29476] * len(spares)
        """Where each machine's controller would listen: other tests on this host have machines, too."""
        self._master = free_port() if network is None else 29500
        self._squatters: list[socket.socket] = []
        self.commands = [self.start(number) for number in range(len(spares))]

    def start(self, number: int, events: str = "") -> subprocess.Popen[str]:
        """The command of one machine, always with the same arguments."""
        options = [f"--nnodes={len(self._spares)}", f"--node-rank={number}", f"--nproc-per-node={self._local_ranks}"]
        host = "127.0.0.1" if self._network is None else self._network.host(0)
        options += [f"--master-addr={host}", f"--master-port={self._master}", f"--spares={self._spares[number]}"]
        options += [f"--jit-dir={self._cli.folder / 'jit'}", f"--events={self.events_file(number, events)}"]
        if self._network is not None:
            inside = self._network.inside(number)
            command = [*inside, sys.executable, "-m", "torchrelay.cli", "run", *options, *self._options, *self._script]
            return self._cli.start_program(*command, GLOO_SOCKET_IFNAME="eth0", **self._environment)
        options += [f"--controller-port={self._ports[number]}"]
        options += [f"--controller={host}:{self._ports[0]}"] * (number > 0)
        command = [sys.executable, "-m", "torchrelay.cli", "run", *options, *self._options, *self._script]
        if number in self._own_files:
            there = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", there, "sh", *map(str, self._own_files[number]), *command]
        return self._cli.start_program(*command, **self._environment)

    def take_port(self, number: int) -> None:
        """Another program listens where the machine's controller would, if it can have the port."""
        with suppress(OSError):
            self._squatters.append(socket.create_server(("", self._ports[number])))

    def events(self, number: int, name: str, of: str = "") -> list[dict[str, Any]]:
        return [e for e in read_events(self.events_file(number, of)) if e["name"] == name]

    def boundary(self, number: int, of: str = "") -> int:
        """What all ranks have reached, as the command of machine `number` was told."""
        return max((e["steps"] for e in self.events(number, "progress", of)), default=-1)

    def moved(self, number: int, of: str = "") -> list[int]:
        """The ranks that have been taken over."""
        done = [e for e in self.events(number, "migration_finished", of) if e["outcome"] == "committed"]
        return sorted(rank for e in done for rank in e["ranks"])

    def end(self, *commands: subprocess.Popen[str]) -> str:
        """Waits for the commands; what all were told and have said, for the message of a failed assertion."""
        said = ["".join(c.communicate(timeout=TIMEOUT_S))[-6000:] for c in commands]
        for squatter in self._squatters:
            squatter.close()
        for path in sorted(self._cli.folder.glob("events-*")):
            said.append(path.name)
            said += [str(e)[:300] for e in read_events(path) if e["name"] not in ("progress", "rank_report", "phase")]
        return "\n".join(said)

    def events_file(self, number: int, of: str) -> Path:
        return self._cli.folder / f"events-{number}{of}"


def lose(command: subprocess.Popen[str]) -> None:
    """As with a machine: nothing of it says a last word."""
    pids = [command.pid, *descendants(command.pid)]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with suppress(ProcessLookupError):  # it may have ended with its parent
                os.kill(pid, number)


def descendants(pid: int) -> list[int]:
    return [found for child in children_of(pid) for found in (child, *descendants(child))]


def worker_of(pid: int) -> str:
    """What its agent calls the process; empty for one that is no worker, none that has begun as one, or has ended."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    for entry in entries:
        name, _, value = entry.partition(b"=")
        if name.decode() == ENV_WORKER:
            return value.decode()
    return ""
