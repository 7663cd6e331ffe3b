"""Donors in this process and in another one, and a proxy that sits between donor and receiver and misbehaves."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from torchrelay.shim.transfer import Donor, TransferStats, receive

TOKEN = "a token of this migration"
GENERATION = 7

DONOR_PROGRAM = """
import sys, torch
from torchrelay.shim.transfer import Donor
torch.manual_seed(0)
tensors = {f"large.{i}": torch.rand(1 << 20) for i in range(8)} | {f"tiny.{i}": torch.rand(i % 50) for i in range(3000)}
donor = Donor(tensors, bind_host="127.0.0.1", generation=int(sys.argv[1]), token=sys.argv[2], peer_host="127.0.0.1",
              deadline_s=60, log=lambda text: print(text, flush=True))
print(donor.start(), flush=True)
print("done" if donor.wait(60) else "not asked for everything", flush=True)
donor.close()
"""


def tensors_of_donor_program() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    large = {f"large.{i}": torch.rand(1 << 20) for i in range(8)}
    return large | {f"tiny.{i}": torch.rand(i % 50) for i in range(3000)}


@contextlib.contextmanager
def donor_process() -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-c", DONOR_PROGRAM, str(GENERATION), TOKEN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


@contextlib.contextmanager
def serving(tensors: Mapping[str, torch.Tensor], **options: Any) -> Iterator[tuple[Donor, int, list[str]]]:
    log: list[str] = []
    defaults: dict[str, Any] = {
        "bind_host": "127.0.0.1",
        "generation": GENERATION,
        "token": TOKEN,
        "peer_host": "127.0.0.1",
        "deadline_s": 60.0,
        "log": log.append,
    }
    donor = Donor(tensors, **(defaults | options))
    port = donor.start()
    try:
        yield donor, port, log
    finally:
        donor.close()


def take(port: int, destinations: Mapping[str, torch.Tensor], host: str = "127.0.0.1", **options: Any) -> TransferStats:
    defaults: dict[str, Any] = {
        "generation": GENERATION,
        "token": TOKEN,
        "place": lambda infos: destinations,
        "deadline_s": 60.0,
    }
    return receive(host, port, **(defaults | options))


def blank(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {path: torch.zeros_like(tensor) for path, tensor in tensors.items()}


class Proxy:
    """Forwards to `port`. `meddle(connection, offset, data)` sees what the donor says, and may change it in place,

    raise ConnectionError to cut the connection, or wait.
    """

    def __init__(self, port: int, meddle: Callable[[int, int, bytearray], None]) -> None:
        self._target = port
        self._meddle = meddle
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Proxy:
        self._threads[0].start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        for sock in self._sockets:
            _end(sock)
        for thread in self._threads[1:]:
            thread.join()
        for sock in [self._listener, *self._sockets]:
            sock.close()

    def _accept(self) -> None:
        number = 0
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            self._sockets += [client, server]
            pairs = ((server, client, number), (client, server, None))
            threads = [threading.Thread(target=self._forward, args=pair) for pair in pairs]
            self._threads += threads
            for thread in threads:
                thread.start()
            number += 1

    def _forward(self, source: socket.socket, target: socket.socket, number: int | None) -> None:
        offset = 0
        try:
            while part := source.recv(1 << 16):
                data = bytearray(part)
                if number is not None:
                    self._meddle(number, offset, data)
                offset += len(data)
                target.sendall(data)
        except OSError:
            pass
        finally:
            _end(source)
            _end(target)


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
