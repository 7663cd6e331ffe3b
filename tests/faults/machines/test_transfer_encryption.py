"""A rank moves to another machine, with all of the wire between the two in view."""

from __future__ import annotations

import ctypes
import socket
import threading
from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support import network
from support.cli_harness import Cli
from support.machines import Fleet
from support.network import Network
from support.training import differences

SCRIPT = "ddp.py"
GREETING = b"TRTENSOR"
"""With which a tensor channel begins."""
ALL_FRAMES = 0x0003
WHY_NOT = network.why_not()
_CLONE_NEWNET = 0x40000000


class Listener:
    """Counts the frames to and from a machine that have `what` in them."""

    def __init__(self, net: Network, machine: int, what: bytes) -> None:
        self._what, self.found, self.frames = what, 0, 0
        self._over = threading.Event()
        self._ready = threading.Event()
        self._namespace = net.namespace(machine)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Listener:
        self._thread.start()
        assert self._ready.wait(10), "nobody listens"
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with open(self._namespace) as namespace:
            # Of this thread alone, which does nothing else.
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(ALL_FRAMES)) as wire:
            wire.bind(("eth0", 0))
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 20)
            wire.settimeout(0.2)
            self._ready.set()
            while not self._over.is_set():
                try:
                    frame = wire.recv(1 << 17)
                except TimeoutError:
                    continue
                self.frames += 1
                self.found += self._what in frame


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
@pytest.mark.parametrize(("protection", "is_seen"), [("integrity", True), ("full", False)])
def test_a_rank_moves_between_machines_bitwise_and_is_read_by_nobody_with_full(
    protection: str, is_seen: bool, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """What is seen with `integrity` shows that the listener would see it."""
    reference, fault = undisturbed(SCRIPT, ranks=2), "kill:rank=1,step=20,phase=backward"
    with Cli(tmp_path) as cli, Network(2) as net, Listener(net, 1, GREETING) as listener:
        options = (f"--inject={fault}", f"--transfer-encryption={protection}")
        job = Fleet(cli, *options, spares=(0, 1), script=SCRIPT, network=net)
        said = [command.communicate()[0] for command in job.commands]
        done = job.events(0, "migration_finished")
        reported = job.events(0, "coverage")[-1]["coverage"]
    assert [command.returncode for command in job.commands] == [0, 0], said
    assert [(e["ranks"], e["outcome"]) for e in done] == [([1], "committed")], said
    assert reported["transfer_encryption"] == protection
    assert listener.frames > 100, said
    assert (listener.found > 0) == is_seen, listener.found
    assert differences(reference, job.out, 2) == [], said
