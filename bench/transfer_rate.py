"""Rate of the tensor channel between two processes, against a bare socket copy of the same bytes in the same run.

The ways alternate, so that a busy machine slows them alike; medians over the rounds. `without sums` is the channel with its
content check switched off, to show what the check costs; `off`, `integrity` and `full` are the channel as it is between machines:
both ends are made to think that they are on two.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import socket
import statistics
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence

import torch

from torchrelay.protocol.security.tls import of_one_server
from torchrelay.protocol.security.transfer_protection import CHOICES, INTEGRITY
from torchrelay.shim.tensors.digest import digests
from torchrelay.shim.tensors.tensor_bytes import memory, size_bytes
from torchrelay.shim.transfer import Donor, lanes, receive
from torchrelay.shim.transfer.channel import Channel

HOST = "127.0.0.1"
TOKEN = "bench"
STEP_BYTES = 4 << 20
BETWEEN_MACHINES = CHOICES
WITHOUT_SUMS = "without sums"
WAYS = ("bare", "channel", WITHOUT_SUMS, *BETWEEN_MACHINES)


def make(large: int, large_bytes: int, tiny: int) -> dict[str, torch.Tensor]:
    tensors = {f"large.{i}": torch.rand(large_bytes // large // 4) for i in range(large)}
    return tensors | {f"tiny.{i}": torch.rand(1 + i % 100) for i in range(tiny)}


def shares(view: memoryview, connections: int) -> list[memoryview]:
    step = -(-len(view) // connections)
    return [view[start : start + step] for start in range(0, len(view), step)]


def in_threads(
    work: Callable[[socket.socket, memoryview], None], pairs: list[tuple[socket.socket, memoryview]]
) -> None:
    threads = [threading.Thread(target=work, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def send_all(sock: socket.socket, view: memoryview) -> None:
    with sock:
        for start in range(0, len(view), STEP_BYTES):
            sock.sendall(view[start : start + STEP_BYTES])


def receive_all(sock: socket.socket, view: memoryview) -> None:
    got = 0
    with sock:
        while got < len(view):
            count = sock.recv_into(view[got : got + STEP_BYTES])
            if not count:
                raise ConnectionError("the other process ended")
            got += count


def without_sums(data: torch.Tensor, out: torch.Tensor) -> None:
    out.zero_()


@contextlib.contextmanager
def no_sums() -> Iterator[None]:
    right, lanes.row_sums = lanes.row_sums, without_sums
    try:
        yield
    finally:
        lanes.row_sums = right


def elsewhere(channel: Channel) -> bool:
    return False


@contextlib.contextmanager
def between_machines() -> Iterator[None]:
    right, Channel.is_local = Channel.is_local, elsewhere
    try:
        yield
    finally:
        Channel.is_local = right


def _protection(way: str) -> str:
    """Return the protection of this way. Between two processes on one machine it adds nothing."""
    return way if way in BETWEEN_MACHINES else INTEGRITY


def serve(way: str, arguments: argparse.Namespace) -> None:
    """Run the other process: it serves until its stdin closes."""
    tensors = make(arguments.large, arguments.bytes, arguments.tiny)
    if way == "bare":
        total = sum(size_bytes(tensor) for tensor in tensors.values())
        view = memory(torch.randint(0, 256, (total,), dtype=torch.uint8))
        listener = socket.create_server((HOST, 0), backlog=64)
        print(listener.getsockname()[1], flush=True)
        for _ in sys.stdin:
            parts = shares(view, arguments.connections)
            in_threads(send_all, [(listener.accept()[0], part) for part in parts])
        return
    if way == WITHOUT_SUMS:
        lanes.row_sums = without_sums
    elif way in BETWEEN_MACHINES:
        Channel.is_local = elsewhere
    donor = Donor(
        tensors,
        bind_host=HOST,
        generation=1,
        token=TOKEN,
        peer_host=HOST,
        deadline_s=3600,
        log=lambda text: None,
        protection=_protection(way),
        identity="".join(of_one_server("bench")),
    )
    print(donor.start(), flush=True)
    sys.stdin.read()
    donor.close()


@contextlib.contextmanager
def server(way: str, arguments: argparse.Namespace) -> Iterator[tuple[subprocess.Popen[str], int]]:
    sizes = [f"--{name}={getattr(arguments, name)}" for name in ("large", "bytes", "tiny", "connections")]
    command = [sys.executable, __file__, "--serve", way, *sizes]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())


def measure(arguments: argparse.Namespace, ways: Sequence[str] = WAYS) -> tuple[int, dict[str, list[float]]]:
    """Return the number of bytes, and the seconds of each round for each way."""
    destinations = {
        path: torch.ones_like(t) for path, t in make(arguments.large, arguments.bytes, arguments.tiny).items()
    }
    total = sum(size_bytes(tensor) for tensor in destinations.values())
    into = memory(torch.ones(total, dtype=torch.uint8))

    def bare(process: subprocess.Popen[str], port: int) -> float:
        assert process.stdin is not None
        started = time.monotonic()
        process.stdin.write("go\n")
        process.stdin.flush()
        parts = shares(into, arguments.connections)
        in_threads(receive_all, [(socket.create_connection((HOST, port)), part) for part in parts])
        return time.monotonic() - started

    def channel(port: int, protection: str) -> float:
        stats = receive(
            HOST,
            port,
            generation=1,
            token=TOKEN,
            place=lambda infos: destinations,
            connections=arguments.connections,
            deadline_s=600,
            protection=protection,
        )
        assert stats.size_bytes == total
        return stats.elapsed_s

    seconds: dict[str, list[float]] = {way: [] for way in ways}
    with contextlib.ExitStack() as stack:
        servers = {way: stack.enter_context(server(way, arguments)) for way in ways}
        for turn in range(arguments.rounds + 1):
            for way, (process, port) in servers.items():
                with contextlib.ExitStack() as round_:
                    if way == WITHOUT_SUMS:
                        round_.enter_context(no_sums())
                    elif way in BETWEEN_MACHINES:
                        round_.enter_context(between_machines())
                    taken_s = bare(process, port) if way == "bare" else channel(port, _protection(way))
                # The first round touches all memory for the first time.
                if turn:
                    seconds[way].append(taken_s)
    return total, seconds


def print_rates(arguments: argparse.Namespace) -> None:
    total, seconds = measure(arguments)
    print(
        f"{arguments.large} tensors of {arguments.bytes / 1e6:.0f} MB in total and {arguments.tiny} tiny ones, "
        f"{arguments.connections} connections, median of {arguments.rounds} rounds"
    )
    print(f"{'':14}{'GB/s':>8}{'best':>8}{'of bare':>9}")
    for way, taken in seconds.items():
        ratio = statistics.median(b / t for b, t in zip(seconds["bare"], taken, strict=True))
        print(f"{way:14}{total / statistics.median(taken) / 1e9:8.2f}{total / min(taken) / 1e9:8.2f}{ratio:9.2f}")


def print_digest_rates(arguments: argparse.Namespace) -> None:
    tensors = make(arguments.large, arguments.bytes, 0)
    views = [memory(tensor) for tensor in tensors.values()]
    total = sum(len(view) for view in views)
    candidates: dict[str, Callable[[], object]] = {
        "digests": lambda: digests(tensors),
        "zlib.crc32": lambda: [zlib.crc32(view) for view in views],
        "sha1": lambda: [hashlib.sha1(view).digest() for view in views],
        "blake2b": lambda: [hashlib.blake2b(view).digest() for view in views],
    }
    print(f"\ncontent digest, one thread, best of {arguments.rounds}")
    for name, work in candidates.items():
        taken = []
        for _ in range(arguments.rounds):
            started = time.monotonic()
            work()
            taken.append(time.monotonic() - started)
        print(f"{name:14}{total / min(taken) / 1e9:8.2f} GB/s")
    tiny = {f"tiny.{i}": torch.rand(1 + i % 100) for i in range(arguments.tiny)}
    started = time.monotonic()
    digests(tiny)
    print(f"{arguments.tiny} tiny tensors: {(time.monotonic() - started) * 1e3:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="64 MB, 1,000 tiny tensors and 3 rounds")
    parser.add_argument("--large", type=int, default=100, help="number of large tensors")
    parser.add_argument("--bytes", type=int, default=512 << 20, help="their size in total")
    parser.add_argument("--tiny", type=int, default=5000, help="number of tensors of 4 to 400 bytes")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--serve", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.bytes, arguments.tiny, arguments.rounds = 64 << 20, 1000, 3
    # As launchers set it for several processes on a machine.
    torch.set_num_threads(1)
    if arguments.serve:
        serve(arguments.serve, arguments)
        return
    print_rates(arguments)
    print_digest_rates(arguments)


if __name__ == "__main__":
    main()
