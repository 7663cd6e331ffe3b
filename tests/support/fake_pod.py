"""A pod as its training container sees it: our environment, a run folder, and an agent that the test plays."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchrelay.agent.processes.launch import shim_folders
from torchrelay.protocol import names
from torchrelay.protocol.errors import TorchrelayError
from torchrelay.protocol.messages import Ack, Armed, Begin, EndNow, Hello, Protect
from torchrelay.protocol.transport import wire

WITHIN_S = 90.0


class FakePod:
    """`parks`: what launchers are told. `hellos` has those of training processes, `launchers` counts the others. `reports`: what
    a process has said since, by its id. Whoever says that it is armed is told that it is protected."""

    def __init__(self, folder: Path, parks: bool = False) -> None:
        folder.mkdir()
        self.folder, self.parks = folder, parks
        self.hellos: list[Hello] = []
        self.reports: dict[int, list[Any]] = {}
        self.launchers = 0
        self.output = folder / "output"
        self._connections: list[socket.socket] = []
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(folder / "s"))
        self._server.listen()
        threading.Thread(target=self._accept, daemon=True).start()
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, **environ: str) -> subprocess.Popen[bytes]:
        """With this machine's Python."""
        site, roots = shim_folders()
        ours = {
            names.ENV_SOCKET: str(self.folder / "s"),
            names.ENV_WORKER: "train",
            names.ENV_TOKEN: "t",
            names.ENV_JOURNAL: str(self.folder),
            names.ENV_ROOTS: os.pathsep.join(map(str, roots)),
            names.ENV_ASK: "1",
            "PYTHONPATH": str(site),
        }
        with self.output.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, *command], env={**os.environ, **ours, **environ}, stdout=output, stderr=output
            )
        self._processes.append(process)
        return process

    def protect(self) -> None:
        (self.folder / names.PROTECTED_FILE).touch()

    def over(self, exit_code: int) -> None:
        (self.folder / names.PROTECTED_FILE).unlink()
        (self.folder / names.OVER_FILE).write_text(str(exit_code))

    def order(self, order: Any) -> None:
        """To the latest training process."""
        self.order_to(self.hellos[-1], order)

    def order_to(self, process: Hello, order: Any) -> None:
        self._connections[self.hellos.index(process)].sendall(wire.encode(order))

    def wait_for(self, processes: int) -> Hello:
        self.until(lambda: len(self.hellos) >= processes)
        return self.hellos[processes - 1]

    def until(self, true: Callable[[], Any]) -> None:
        until_s = time.monotonic() + WITHIN_S
        while not true():
            assert time.monotonic() < until_s, self.output.read_text()
            time.sleep(0.02)  # other processes tell nobody what they do

    def close(self) -> None:
        for process in self.hellos:  # a launcher that is killed leaves them
            with contextlib.suppress(OSError):
                self.order_to(process, EndNow(0))
        self._server.close()
        for process in self._processes:
            process.kill()
            process.wait()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(TorchrelayError, OSError), connection:
            hello = wire.receive(connection, wire.REPORTS)
            connection.sendall(wire.encode(Ack()))
            if hello.launcher:
                self.launchers += 1
                connection.sendall(wire.encode(Begin("launcher", "", self.parks)))
            else:
                journal = self.folder / f"journal-{hello.pid}"
                journal.mkdir()
                connection.sendall(wire.encode(Begin("train.1", str(journal), hello.spare)))
                self._connections.append(connection)
                self.hellos.append(hello)
            while True:
                report = wire.receive(connection, wire.REPORTS)
                self.reports.setdefault(hello.pid, []).append(report)
                if isinstance(report, Armed):
                    connection.sendall(
                        wire.encode(Protect(True, "all ranks are armed", bytes(names.GATE_SECRET_BYTES)))
                    )
