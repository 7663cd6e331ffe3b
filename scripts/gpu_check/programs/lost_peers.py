"""One survivor whose peers are killed in the middle of a collective, one after the other, and who goes on with the next.

It does with its communicators what torchrelay does in a training process, by the same code. ROLE=survivor starts its peers
itself, and prints a JSON object for each round, for two groups that wait at once, and at its end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from torchrelay.protocol.logs.log_lines import LogLines, LogPart
from torchrelay.shim.backends.nccl import Nccl

LOG = LogLines(LogPart.SHIM)

ROUNDS = int(os.environ["ROUNDS"])
LARGE_BYTES = int(os.environ["LARGE_BYTES"])
ALIVE_S = float(os.environ["ALIVE_S"])
QUEUED = int(os.environ["QUEUED"])
"""All-reduces in flight: the kill comes when the first ones are over, and most are still to come."""
STREAMS_OF_TORCH = 32
"""In its pool of each priority."""
DEADLINE_S = 30.0
TWO_GROUPS = "two groups"
DEVICE = torch.device("cuda", 0)


def report(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def connected(backend: Nccl, store: Any, name: str, place: int) -> Any:
    communicator = backend.new(dist.PrefixStore(name, store), place, 2, None)
    backend.connect(communicator, DEVICE)
    return communicator


def groups_of(turn: str) -> list[str]:
    return [f"{turn}/a", f"{turn}/b"] if turn == TWO_GROUPS else [turn]


def kind_of(link: Path) -> str:
    try:
        return os.readlink(link).partition(":")[0].partition(" ")[0]
    except FileNotFoundError:  # it was that of the listing itself
        return "listing"


def post(communicator: Any, tensor: torch.Tensor, stream: Any, count: int) -> torch.cuda.Event:
    """Queue `count` all-reduces. Return the event behind the second one."""
    early = torch.cuda.Event()
    with torch.cuda.stream(stream):
        for number in range(count):
            communicator.allreduce([tensor]).wait()
            if number == 1:
                early.record()
    return early


def end_with_the_survivor() -> None:
    sys.stdin.read()
    os._exit(1)


def be_a_peer(backend: Nccl, turn: str) -> None:
    """Wait for the turn, take part, and be killed by the survivor."""
    threading.Thread(target=end_with_the_survivor, daemon=True).start()
    torch.ones(1, device=DEVICE)
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), timeout=timedelta(seconds=600))
    store.set(f"ready/{turn}", b"1")
    store.get(f"turn/{turn}")
    made = [connected(backend, store, name, 1) for name in groups_of(turn)]
    tensors = [torch.ones(LARGE_BYTES // 4, device=DEVICE) for _ in made]
    for communicator, tensor in zip(made, tensors, strict=True):
        post(communicator, tensor, torch.cuda.Stream(), QUEUED)
    threading.Event().wait()


def spawn(turn: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"ROLE": turn}
    return subprocess.Popen(
        [sys.executable, __file__], env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )


class Survivor:
    def __init__(self, backend: Nccl) -> None:
        self.backend = backend
        port = int(os.environ["MASTER_PORT"])
        self.store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        self.kept = torch.arange(LARGE_BYTES // 4, device=DEVICE, dtype=torch.float32)
        self.kept_sum = self.kept.double().sum().item()

    def warm_up(self) -> None:
        """Use what the first communicators use, and what torch keeps for further ones, so that it does not count as a leak."""
        for _ in range(STREAMS_OF_TORCH):
            for priority in (0, -1):
                with torch.cuda.stream(torch.cuda.Stream(priority=priority)):
                    torch.ones(1, device=DEVICE)
        alone = self.backend.unconnected(0, 1)
        alone.allreduce([torch.ones(1, device=DEVICE)]).wait()
        torch.ones(LARGE_BYTES // 2, device=DEVICE)  # room for the largest turn
        self.backend.free([alone], LOG)
        self.backend.await_freed(DEADLINE_S)
        self.backend.check_device(DEVICE)

    def held(self) -> dict[str, Any]:
        free_bytes, total_bytes = torch.cuda.mem_get_info(DEVICE)
        tasks = Path("/proc/self/task").iterdir()
        return {
            "used_device_bytes": total_bytes - free_bytes,
            "descriptors": Counter(kind_of(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()),
            "threads": Counter((task / "comm").read_text().strip() for task in tasks),
        }

    def take_turn(self, turn: str, peer: subprocess.Popen[bytes]) -> dict[str, Any]:
        """Connect to a peer, kill it among collectives, free the communicators, and return how long each part took."""
        names = groups_of(turn)
        self.store.wait([f"ready/{turn}"], timedelta(seconds=120))  # it has imported torch
        self.store.set(f"turn/{turn}", b"1")
        started_s = time.monotonic()
        made = [connected(self.backend, self.store, name, 0) for name in names]
        connected_s = time.monotonic()
        tensors = [torch.ones(LARGE_BYTES // 4, device=DEVICE) for _ in made]
        streams = [torch.cuda.Stream() for _ in made]
        # One more than the peer: the last one waits for it in any case.
        early = [post(*each, QUEUED + 1) for each in zip(made, tensors, streams, strict=True)]
        last = torch.cuda.Event()
        last.record(streams[-1])
        for event in early:
            event.synchronize()
        peer.send_signal(signal.SIGKILL)
        peer.communicate()
        was_waiting = self._waits()
        is_stuck = not last.query()
        killed_s = time.monotonic()
        self.backend.free(made, LOG)
        last.synchronize()
        loose_s = time.monotonic()
        self.backend.await_freed(DEADLINE_S)
        freed_s = time.monotonic()
        self.backend.check_device(DEVICE)
        settled_s = time.monotonic()
        return {
            "connect_s": connected_s - started_s,
            "is_stuck": is_stuck,
            "seen_to_wait": was_waiting,
            "loose_s": loose_s - killed_s,
            "abort_s": freed_s - killed_s,
            "settle_s": settled_s - freed_s,
            "intact": self.kept.double().sum().item() == self.kept_sum,
        }

    def _waits(self) -> bool:
        """Return whether torch's recorder shows a collective that waits. torchrelay's search for a hang asks it in the same way."""
        until_s = time.monotonic() + 5.0
        while time.monotonic() < until_s:
            if self.backend.waits():
                return True
        return False

    def run(self) -> None:
        turns = [str(number) for number in range(ROUNDS)] + [TWO_GROUPS]
        self.warm_up()
        before = self.held()
        peers = {turn: spawn(turn) for turn in turns}
        for turn in turns:
            report(turn=turn, **self.take_turn(turn, peers[turn]))
        torch.cuda.empty_cache()
        report(before=before, after=self.held())
        end_s = time.monotonic() + ALIVE_S
        while time.monotonic() < end_s:
            self.backend.check_device(DEVICE)
            time.sleep(1.0)  # the time itself is what is tried
        alone = self.backend.unconnected(0, 1)
        ones = torch.ones(8, device=DEVICE)
        alone.allreduce([ones]).wait()
        report(alive_s=ALIVE_S, works=ones.sum().item() == 8.0)


def main() -> None:
    backend = Nccl()
    os.environ.update(backend.environment)
    torch.cuda.set_device(DEVICE)
    role = os.environ["ROLE"]
    if role == "survivor":
        Survivor(backend).run()
    else:
        be_a_peer(backend, role)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
