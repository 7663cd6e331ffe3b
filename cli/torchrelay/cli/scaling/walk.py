"""Walks migrations through a real controller, with as many played ranks as wanted; and gates, through the shim's own."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchrelay.cli.scaling.played_machines import PlayedMachine, events_of
from torchrelay.protocol import messages as msg
from torchrelay.protocol import relay_pb2, relay_pb2_grpc
from torchrelay.protocol.errors import TorchrelayError
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.security.tls import Credentials
from torchrelay.protocol.words.level import Level

PATIENCE_S = 180.0
GRACE_S = 30.0
ADDRESS_POLL_S = 0.02
LOG_SHOWN = 2000
"""Characters."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class WalkedMigration:
    """Seconds. `controller_cpu_s`: what the controller's process itself used; `status_s`: until `status` was answered."""

    ranks: int
    told_s: float
    """From the word of the loss until the last survivor was told to leave its communicators."""
    whole_s: float
    controller_cpu_s: float
    status_s: float
    status_bytes: int
    ready_s: float
    controller_mib: float


@dataclass(frozen=True)
class WalkedGate:
    """Seconds of processor time of a rank, but for `gate_s` and `connect_s`, which passed. `gets_per_s`: of the store."""

    ranks: int
    gate_s: float
    gate_cpu_s: float
    connect_s: float
    connect_cpu_s: float
    gets_per_s: float


def walk_migration(ranks: int) -> WalkedMigration:
    """Walk one migration in a child process. Raises TorchrelayError if it does not come to its end in time."""
    return WalkedMigration(**_in_a_child(__spec__.name, ranks))


def _in_a_child(module: str, ranks: int) -> dict[str, Any]:
    """Run the module in a new process, and return what it prints. Raises TorchrelayError if it ends in an error, or not in time.

    Each walk has a process of its own: gRPC's event loop serves one of asyncio's, and a second one can hang.
    """
    command = [sys.executable, "-m", module, str(ranks)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S + GRACE_S, check=False)
    except subprocess.TimeoutExpired as e:
        raise TorchrelayError(f"{' '.join(command)} was not done after {e.timeout:.0f} s") from e
    if done.returncode != 0:
        raise TorchrelayError(f"{' '.join(command)} ended with exit code {done.returncode}: {done.stderr[-LOG_SHOWN:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _walk_here(ranks: int) -> WalkedMigration:
    secret = secrets.token_bytes(32)
    with tempfile.TemporaryDirectory() as folder, _controller(ranks, Path(folder), secret) as (pid, target):
        try:
            return asyncio.run(asyncio.wait_for(_migrate(ranks, secret, pid, target), PATIENCE_S))
        except (asyncio.TimeoutError, TorchrelayError) as e:
            why = f"no migration within {PATIENCE_S:.0f} s" if isinstance(e, asyncio.TimeoutError) else str(e)
            log = (Path(folder) / "log").read_text(errors="replace")[-LOG_SHOWN:]
            raise TorchrelayError(f"{ranks} played ranks: {why}; the controller has said:\n{log}") from e


def walk_gate(ranks: int) -> WalkedGate:
    """Walk one gate. Raises TorchrelayError if the child that plays the ranks ends in an error."""
    return WalkedGate(ranks, **_in_a_child("torchrelay.shim.comm.gate_walk", ranks))


async def _migrate(ranks: int, secret: bytes, pid: int, target: str) -> WalkedMigration:
    credentials = Credentials.from_secret(secret, "agent")
    told = list[float]()

    def heard(order: Any) -> None:
        if isinstance(order, msg.Interrupt):
            told.append(time.monotonic())

    began_s = time.monotonic()
    machines = [PlayedMachine(n, rank, ranks, heard) for n, rank in enumerate([*range(ranks), NO_RANK])]
    streams = [asyncio.create_task(machine.run(credentials, target)) for machine in machines]
    try:
        async with events_of(credentials, target) as events:
            steps = asyncio.create_task(_tell_steps(machines))
            await _event(events, "protection", lambda fields: Level(fields["level"]).promises)
            ready_s = time.monotonic() - began_s
            cpu_s = _cpu_s(pid)
            killed_s = time.monotonic()
            machines[1].lose()
            finished = await _event(events, "migration_finished", lambda fields: True)
            whole_s = time.monotonic() - killed_s
            used_s = _cpu_s(pid) - cpu_s
            steps.cancel()
            status_s, status_bytes = await _status(credentials, target)
    finally:
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    if finished["outcome"] != "committed":
        raise TorchrelayError(f"{ranks} played ranks: {finished['outcome']}: {finished.get('outcome_reason')}")
    survivors = sorted(told)[: ranks - 1]
    return WalkedMigration(
        ranks, survivors[-1] - killed_s, whole_s, used_s, status_s, status_bytes, ready_s, _resident_mib(pid)
    )


async def _tell_steps(machines: list[PlayedMachine]) -> None:
    """Tell all steps once a second, as agents do."""
    count = 0
    while True:
        count += 1
        for machine in machines:
            machine.tell_step(count)
        await asyncio.sleep(1.0)


async def _event(
    events: AsyncIterator[msg.JobEvent], name: str, is_wanted: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Return the next wanted event of that name. Raises TorchrelayError if the controller ends before."""
    async for event in events:
        fields: dict[str, Any] = json.loads(event.fields_json)
        if event.name == name and is_wanted(fields):
            return fields
    raise TorchrelayError(f"the controller has ended before it told of {name}")


async def _status(credentials: Credentials, target: str) -> tuple[float, int]:
    async with credentials.channel(target) as channel:
        stub = relay_pb2_grpc.RelayStub(channel)
        await stub.Status(relay_pb2.Empty(), wait_for_ready=True)  # the first one connects
        began_s = time.monotonic()
        answer = await stub.Status(relay_pb2.Empty())
        return time.monotonic() - began_s, answer.ByteSize()


@contextmanager
def _controller(ranks: int, folder: Path, secret: bytes) -> Iterator[tuple[int, str]]:
    """Run a controller. Yield its process id and where it is reached. Raises TorchrelayError if it ends before."""
    (folder / "secret").write_bytes(secret)
    config = {
        "run_id": "scaling",
        "nnodes": ranks,
        "nproc_per_node": 1,
        "secret_file": str(folder / "secret"),
        "address_file": str(folder / "address"),
        "jit_dir": str(folder / "jit"),
        "master_addr": "127.0.0.1",
        "master_port": 1,
        "adopted": True,
    }
    (folder / "config").write_text(json.dumps(config))
    command = [sys.executable, "-m", "torchrelay.controller", "--config", str(folder / "config")]
    with (
        open(folder / "log", "wb") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log) as process,
    ):
        try:
            yield process.pid, _address(folder / "address", process)
        finally:
            process.kill()


def _address(path: Path, process: subprocess.Popen[bytes]) -> str:
    while not path.exists():
        with suppress(subprocess.TimeoutExpired):
            raise TorchrelayError(f"the controller has ended with exit code {process.wait(ADDRESS_POLL_S)}")
    told = json.loads(path.read_text())
    return f"{told['host']}:{told['port']}"


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def main() -> int:
    """Walk one migration, and print what was measured."""
    try:
        print(json.dumps(asdict(_walk_here(int(sys.argv[1])))))
    except TorchrelayError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
