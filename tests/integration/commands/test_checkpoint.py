"""`torchrelay checkpoint` around a script whose ranks hold nothing in common: only a checkpoint can bring back a lost one."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.cli_harness import TIMEOUT_S, Cli, eventually

STEPS = 400
EACH_ITS_OWN = """
    import os, sys, time, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7 + rank)
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(int(os.environ["STEPS"])):
        loss = model(torch.randn(4, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        dist.all_reduce(torch.ones(1))
        optimizer.step()
        time.sleep(0.3 if os.path.exists("slow") else 0)
        sys.stdout.write(f"loss {rank} {step} {loss.item().hex()}\\n")  # whole, beside another rank's
    dist.destroy_process_group()
"""


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    with Cli(tmp_path) as used:
        yield used


def expected(rank: int) -> list[str]:
    """What the rank prints where nothing disturbs it: the same steps, in this process."""
    with torch.random.fork_rng():
        torch.manual_seed(7 + rank)
        model = torch.nn.Linear(16, 16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        lines = []
        for step in range(STEPS):
            loss = model(torch.randn(4, 16)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            lines.append(f"loss {rank} {step} {loss.item().hex()}")
    return lines


def test_a_rank_that_nobody_else_could_give_enters_again_from_a_checkpoint_that_was_asked_for(cli: Cli) -> None:
    barred = ("--spares", "0", "--respawn-limit", "0", "--buddy-every", "0")
    slow = cli.folder / "slow"
    slow.touch()
    job = cli.start(
        *("run", "--nproc-per-node", "2", *barred, "--jit-dir", "jit", "--json", "--name", "alone", "SCRIPT"),
        script=EACH_ITS_OWN,
        STEPS=str(STEPS),
    )

    def status() -> dict[str, Any]:
        done = cli.run("status", "--json")
        ranks = json.loads(done.stdout)["ranks"] if done.returncode == 0 else []
        return {r["rank"]: r for r in ranks} if len(ranks) == 2 and all(r["boundary"] > 1 for r in ranks) else {}

    eventually("both ranks train", status)
    asked = cli.run("checkpoint", "alone", "--reason", "before the maintenance", "--json")
    assert asked.returncode == 0, asked.stderr
    saved = json.loads(asked.stdout)
    assert saved["outcome"] == "saved"
    assert (cli.folder / saved["directory"] / "manifest.json").is_file()
    assert f"the checkpoint of step {saved['boundary']} is in {saved['directory']}; the job goes on" in asked.stderr

    def further() -> int:
        ranks = status()
        return int(ranks[1]["pid"]) if ranks and ranks[1]["boundary"] > saved["boundary"] else 0

    os.kill(eventually("the job has gone on", further), signal.SIGKILL)
    slow.unlink()
    out, err = job.communicate(timeout=TIMEOUT_S)
    assert job.returncode == 0, err
    summary = json.loads(out.splitlines()[-1])
    (restart,) = summary["restarts"]
    assert (restart["rung"], restart["boundary"]) == ("earlier-checkpoint", saved["boundary"])
    for rank in (0, 1):
        said = re.findall(rf"loss {rank} \d+ \S+?p[-+]\d+", out)  # two ranks may share a line
        again = said[-(STEPS - saved["boundary"]) :]
        assert again == expected(rank)[saved["boundary"] :]
        assert said[: -len(again)] == expected(rank)[: len(said) - len(again)]
    assert Path(saved["directory"]).is_dir(), "what somebody asked for is theirs"
