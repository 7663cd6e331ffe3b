"""A job on this machine that is struck and moved, while strangers are at each port that one of its processes opens."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from attack.draw import Draw
from attack.strangers import CLIENT_HELLO, HTTP2
from attack.tally import Tally
from support.footprint import children_of
from support.relay_run import Finished, plain, relay
from support.training import differences

from torchrelay.protocol.journals import journal_copy

SCRIPT, RANKS, STEPS_PER_EPOCH = "ddp.py", 2, 11
LISTENS = "0A"
STRANGERS = 6
"""At each port: half of them say something and end, the others keep their connection."""
HOLD_S = 3.0
LIMIT_S = 100.0
_BEGINNINGS = (b"", CLIENT_HELLO, HTTP2, b"TRTENSOR", bytes(journal_copy.GREETING_BYTES), b"\xff" * 64)


class Ports:
    """Strangers at the ports of processes, each port once. `watch` or `come_to` are to be called again and again.

    They come to ranks once the job is protected: gloo takes whoever says the right number for a peer as long as it connects, with
    torchrun as well.
    """

    def __init__(self, draw: Draw, tally: Tally, is_protected: Callable[[], bool]) -> None:
        self._draw, self._tally, self._is_protected = draw, tally, is_protected
        self._seen: set[tuple[int, int]] = set()
        self._threads: list[threading.Thread] = []
        self.by_owner: Counter[str] = Counter()

    def watch(self, command: int) -> None:
        """To all that a command has started."""
        self.come_to(_processes(command))

    def come_to(self, owners: Mapping[int, str]) -> None:
        """To these processes."""
        inodes = _listening()
        for pid, owner in owners.items():
            if owner == "a rank" and not self._is_protected():
                continue
            for inode in _sockets(pid) & inodes.keys():
                port = inodes[inode]
                if (pid, port) not in self._seen:
                    self._seen.add((pid, port))
                    self.by_owner[owner] += 1
                    self._come(owner, port)

    def end(self) -> None:
        for thread in self._threads:
            thread.join(HOLD_S + 10)

    def _come(self, owner: str, port: int) -> None:
        for number in range(STRANGERS):
            data = self._draw.chance.choice(_BEGINNINGS) + self._draw.garbage()
            self._tally.sent(f"stranger at a port of {owner}")
            thread = threading.Thread(target=self._stranger, args=(port, data, number % 2 == 1, owner), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _stranger(self, port: int, data: bytes, stays: bool, owner: str) -> None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.settimeout(HOLD_S)
            connection.sendall(data[:1] if stays else data)
            answer = connection.recv(4096)  # or nothing is said for so long
            self._tally.refuse(
                f"stranger at a port of {owner}", f"closed after {'an answer' if answer else 'no answer'}"
            )


def _listening() -> dict[str, int]:
    """Inode -> port."""
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS:
                found[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    return found


def _processes(pid: int) -> dict[int, str]:
    """With all that it has started, and what each is."""
    found = {pid: "the command"}
    to_look = [pid]
    while to_look:
        for child in children_of(to_look.pop()):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{child}/cmdline").read_bytes().decode(errors="replace")
                part = re.search(r"torchrelay\.(controller|agent)", words)
                found[child] = f"the {part[1]}" if part else "a rank"
            to_look.append(child)
    return found


def _sockets(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found


def attack_machine(folder: Path, epochs: int, seed: int, tally: Tally) -> Finished:
    """A loss and a planned move; the whole has to end bitwise as the undisturbed run."""
    events = folder / "run" / "events.jsonl"

    def is_protected() -> bool:
        return events.exists() and '"level": "protected"' in events.read_text()

    ports = Ports(Draw(f"{seed}/machine"), tally, is_protected)
    steps = epochs * STEPS_PER_EPOCH
    kill, move_at = f"kill:rank=1,step={steps // 3},phase=backward", 2 * steps // 3
    (folder / "run").mkdir()
    run = relay(
        folder / "run",
        SCRIPT,
        str(epochs),
        ranks=RANKS,
        spares=2,
        inject=[kill, f"planned:rank=0,step={move_at}"],
        planned_at=[move_at],
        limit_s=LIMIT_S,
        environment={"STEP_S": "0.05"},
        watch=ports.watch,
    )
    ports.end()
    (folder / "plain").mkdir()
    reference = plain(folder / "plain", SCRIPT, str(epochs), ranks=RANKS)
    if run.status:
        tally.fail(f"the job on this machine: {run.told()}")
    for text in differences(reference, run.out, RANKS):
        tally.fail(f"the job on this machine is not as the undisturbed one: {text}")
    if len(run.committed()) != 2 or not run.faults():
        tally.fail(
            f"{len(run.committed())} migrations and faults {run.faults()} of the job on this machine: {run.told()}"
        )
    for owner in ("the controller", "a rank"):
        if not ports.by_owner[owner]:
            tally.fail(f"no port of {owner} was found")
    return run
