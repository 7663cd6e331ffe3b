"""Ways to go on at the end of the ladder, under the command as a user starts it, on one machine."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cli_harness import TIMEOUT_S, Cli

STEPS, EVERY, LOST_IN = 40, 10, 25
TRAINS = f"""
    import os, pathlib, time, torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = DistributedDataParallel(torch.nn.Linear(16, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    own, begun = pathlib.Path(os.environ["OWN"]), 0
    if own.exists():
        saved = torch.load(own)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        begun = saved["step"]
    for step in range(begun, {STEPS}):
        data = torch.Generator().manual_seed(step)
        loss = model(torch.randn(4, 16, generator=data)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if os.environ.get("CRASHES") == f"{{dist.get_rank()}} {{step}}":
            os.kill(os.getpid(), int(os.environ["SIGNAL"]))
        optimizer.step()
        time.sleep(0.02)
        if dist.get_rank() == 0:
            print(f"loss {{step}} {{loss.item().hex()}}", flush=True)
        if (step + 1) % {EVERY} == 0:
            if dist.get_rank() == 0:
                state = dict(model=model.state_dict(), optimizer=optimizer.state_dict(), step=step + 1)
                torch.save(state, f"{{own}}.new")
                os.replace(f"{{own}}.new", own)
            dist.barrier()
    dist.destroy_process_group()
"""


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    with Cli(tmp_path) as used:
        yield used


def ended(cli: Cli, *options: str, own: str, **environment: str) -> tuple[int, str, str]:
    """Exit code, what the ranks printed and what was told."""
    process = cli.start(
        *("run", "--nproc-per-node=2", "--json-file=summary.json", *options, "SCRIPT"),
        script=TRAINS,
        OWN=str(cli.folder / own),
        **environment,
    )
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out, err


def losses(out: str) -> list[tuple[int, str]]:
    return [(int(step), loss) for step, loss in re.findall(r"^loss (\d+) (\S+)$", out, re.M)]


def summary(cli: Cli) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((cli.folder / "summary.json").read_text())
    return found


def test_a_script_that_begins_again_finds_its_own_checkpoint_and_ends_with_the_same_numbers(cli: Cli) -> None:
    code, out, err = ended(cli, own="undisturbed.pt")
    expected = losses(out)
    assert (code, [step for step, _ in expected]) == (0, list(range(STEPS))), err
    faults = [f"--inject=kill:rank={rank},step={LOST_IN}" for rank in (0, 1)]
    code, out, err = ended(cli, "--buddy-every=0", *faults, own="own.pt")
    assert code == 0, err
    (restart,) = summary(cli)["restarts"]
    assert (restart["rung"], restart["boundary"], restart["directory"]) == ("script", -1, ""), err
    assert [(r["rung"], r["times"]) for r in summary(cli)["rungs"]] == [("script", 1)]
    before, begun = LOST_IN - 1, LOST_IN // EVERY * EVERY
    assert [step for step, _ in losses(out)] == [*range(before), *range(begun, STEPS)], "it began at its own checkpoint"
    assert dict(losses(out)) == dict(expected)
    assert losses(out)[before - (before - begun) : before] == losses(out)[before : before + before - begun]


@pytest.mark.parametrize(
    ("number", "code", "respawns", "story"),
    [
        (
            signal.SIGSEGV,
            128 + signal.SIGSEGV,
            1,
            f"the same failure at the same step twice: it is the program's, and another spare would meet it too "
            f"[SIGSEGV in step {LOST_IN}]",
        ),
        (
            signal.SIGKILL,
            75,
            2,
            f"rank 1 was lost at step {LOST_IN - 1} 3 times (n0.w1 was killed by SIGKILL; n0.r0 was killed by SIGKILL; n0.r1 was "
            "killed by SIGKILL): the script or its data would meet the same end again",
        ),
    ],
)
def test_an_end_that_comes_again_at_the_same_step_ends_the_job_with_its_story(
    number: signal.Signals, code: int, respawns: int, story: str, cli: Cli
) -> None:
    came_to, out, err = ended(cli, own="own.pt", CRASHES=f"1 {LOST_IN - 1}", SIGNAL=str(int(number)))
    assert story in err, err
    assert came_to == code, err
    assert [(r["rung"], r["times"]) for r in summary(cli)["rungs"]] == [("respawn", respawns)]
    assert summary(cli)["restarts"] == []
    assert max(step for step, _ in losses(out)) == LOST_IN - 2
