"""What is left in the temporary folder by a command that is killed together with all of its processes goes with the next one."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli_harness import TIMEOUT_S, Cli, eventually

from torchrelay.protocol.machine.scratch import is_scratch

SLOW_TO_SET_UP = """
    import time, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    log = open(f"log-{dist.get_rank()}", "w")
    log.write("begun")
    log.flush()
    time.sleep(4)
    for step in range(100_000):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        time.sleep(0.02)
"""


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    with Cli(tmp_path) as used:
        yield used


def test_a_killed_command_leaves_nothing_of_a_rank_that_was_taking_over_to_the_one_after_the_next(
    cli: Cli, tmp_path: Path
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    job = ("run", "--nproc-per-node", "2", "--spares", "1", "--inject", "kill:rank=1,step=3", "SCRIPT")
    process = cli.start(*job, script=SLOW_TO_SET_UP, TMPDIR=str(temporary))

    def scratch() -> list[Path]:
        """With the copy of the log that the lost rank has written."""
        return [folder for folder in temporary.iterdir() if is_scratch(folder.name) and any(folder.iterdir())]

    eventually("a spare takes over", scratch)
    (told,) = cli.state.glob("*/run.json")
    pids = [part["pid"] for part in json.loads(told.read_text())["processes"]]
    assert pids[0] == process.pid
    for pid in pids:  # the command, which watches the others, first
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=TIMEOUT_S)
    (left,) = scratch()
    joiner = int(left.name.split("-")[1])
    eventually("the kernel has ended the spare", lambda: not Path(f"/proc/{joiner}").exists())
    assert scratch() == [left]
    after = cli.start("run", "SCRIPT", script="print('done')", TMPDIR=str(temporary))
    out, err = after.communicate(timeout=TIMEOUT_S)
    assert (out, after.returncode) == ("done\n", 0), err
    assert scratch() == []
