"""Migrations as a user sees them: `run`, `status` and `migrate` around an ordinary DDP script."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cells import only_in_long
from support.cli_harness import TIMEOUT_S, Cli, eventually

TRAINS = """
    import os, pathlib, time, torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = DistributedDataParallel(torch.nn.Linear(16, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(int(os.environ["STEPS"])):
        loss = model(torch.randn(4, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
        if dist.get_rank() == 0:
            print(f"loss {loss.item().hex()}")
    dist.destroy_process_group()
"""


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    with Cli(tmp_path) as used:
        yield used


def summary_of(out: str) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(out.splitlines()[-1])
    return summary


def losses(out: str) -> list[str]:
    return [line for line in out.splitlines() if line.startswith("loss ")]


def undisturbed(cli: Cli, steps: int) -> list[str]:
    process = cli.start("run", "--nproc-per-node", "2", "SCRIPT", script=TRAINS, STEPS=str(steps))
    out, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert len(losses(out)) == steps
    return losses(out)


@pytest.mark.core
def test_a_rank_is_moved_by_command_while_the_script_trains(cli: Cli) -> None:
    arguments = ("run", "--nproc-per-node", "2", "--spares", "1", "--no-refill", "--json", "SCRIPT")
    process = cli.start(*arguments, script=TRAINS, STEPS="600")

    def ready() -> bool:
        done = cli.run("status", "--json")
        status = json.loads(done.stdout) if done.returncode == 0 else {"protection": "", "spares": {}, "ranks": []}
        trains = all(rank["boundary"] > 0 for rank in status["ranks"])
        return bool(status["protection"] == "protected" and status["spares"]["ready"] and trains)

    eventually("the job trains and its spare is warm", ready)
    moved = cli.run("migrate", "--rank", "1", "--reason", "node needs a new fan")
    assert moved.returncode == 0, moved.stderr
    assert re.search(r"rank 1 moved to n0\.s0: no step redone, \d+\.\d\d s of downtime", moved.stderr)
    status = json.loads(cli.run("status", "--json").stdout)
    assert (status["generation"], status["migrations_done"], status["ranks"][1]["worker"]) == (1, 1, "n0.s0")
    refused = cli.run("migrate", "--rank", "0", "--reason", "again")
    assert refused.returncode == 2
    assert "no spare" in refused.stderr
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    (migration,) = summary_of(out)["migrations"]
    assert (migration["kind"], migration["outcome"], migration["ranks"]) == ("planned", "committed", [1])
    assert migration["reason"] == "node needs a new fan"
    assert "seconds of detect fence prepare quiesce transfer rebuild verify first step  sum" in err


@only_in_long
def test_a_killed_rank_costs_one_step_and_no_loss_value(cli: Cli) -> None:
    expected = undisturbed(cli, 60)
    process = cli.start(
        *("run", "--nproc-per-node", "2", "--spares", "1", "--json", "--inject", "kill:rank=1,step=30", "SCRIPT"),
        script=TRAINS,
        STEPS="60",
    )
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    assert losses(out) == expected
    assert "fault injected: kill:rank=1,step=30,phase=forward" in err
    summary = summary_of(out)
    assert [m["outcome"] for m in summary["migrations"]] == ["committed"]
    assert summary["steps_redone"] <= 1
    assert summary["faults_not_injected"] == []


def test_a_planned_move_that_comes_too_late_fails_the_run_in_words(cli: Cli) -> None:
    process = cli.start(
        *("run", "--nproc-per-node", "2", "--spares", "1", "--json", "--events", "events.jsonl"),
        *("--inject", "planned:rank=1,step=30", "SCRIPT"),
        script=TRAINS,
        STEPS="30",
    )
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 76, err
    asked = "--inject planned:rank=1,step=30,phase=forward"
    assert f"the planned migration of rank 1 did not take place ({asked}): " in err
    summary = summary_of(out)
    assert (summary["exit_code"], summary["faults_not_injected"]) == (76, [])
    (off,) = summary["moves_not_made"]
    assert (off["rank"], off["asked"]) == (1, asked)
    assert "end of its script" in off["reason"]
    events = [json.loads(line) for line in (cli.folder / "events.jsonl").read_text().splitlines()]
    (told,) = (e for e in events if e["name"] == "move_not_made")
    assert off.items() <= told.items()


@pytest.mark.core
def test_a_job_that_cannot_go_on_is_started_anew_at_the_same_step_with_the_same_numbers(cli: Cli) -> None:
    expected = undisturbed(cli, 60)
    faults = ("kill:rank=1,step=20", "kill:rank=0,step=40,phase=backward")
    process = cli.start(
        *(
            "run",
            "--nproc-per-node",
            "2",
            "--respawn-limit",
            "0",
            "--json",
            "--events",
            "events.jsonl",
            "--jit-dir",
            "jit",
        ),
        *(word for fault in faults for word in ("--inject", fault)),
        "SCRIPT",
        script=TRAINS,
        STEPS="60",
    )
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    assert losses(out) == expected
    summary = summary_of(out)
    assert [(r["rung"], r["steps"]) for r in summary["restarts"]] == [("jit-checkpoint", 0)] * 2
    assert all(r["down_s"] > 0 for r in summary["restarts"])
    assert [(r["rung"], r["times"]) for r in summary["rungs"]] == [("jit-checkpoint", 2)]
    assert (summary["exit_code"], summary["checkpoint"], summary["faults_not_injected"]) == (0, "", [])
    assert not (cli.folder / "jit").exists()
    assert re.search(r"2 restarts, no step lost in them, \d+\.\d\d s until all trained again", err)
    events = [json.loads(line)["name"] for line in (cli.folder / "events.jsonl").read_text().splitlines()]
    told = [name for name in events if name in ("job_fell", "job_finished", "job_restarted", "restart_done")]
    assert told == ["job_fell", "job_finished", "job_restarted", "restart_done"] * 2 + ["job_finished"]


@pytest.mark.core
def test_without_a_spare_a_killed_process_is_started_again_in_its_place(cli: Cli) -> None:
    expected = undisturbed(cli, 60)
    process = cli.start(
        *("run", "--nproc-per-node", "2", "--json", "--inject", "kill:rank=1,step=20"),
        *("--inject", "kill:rank=0,step=40,phase=optimizer", "SCRIPT"),
        script=TRAINS,
        STEPS="60",
    )
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    assert losses(out) == expected
    assert "torchrelay: protected: a process that dies is started again in its place" in err
    summary = summary_of(out)
    assert [(m["ranks"], m["spares"], m["outcome"]) for m in summary["migrations"]] == [
        ([1], ["n0.r0"], "committed"),
        ([0], ["n0.r1"], "committed"),
    ]
    for rank in (0, 1):
        assert f"respawn: a new process is started for rank {rank} on n0 (1 of 3 within the hour)" in err
    (taken,) = summary["rungs"]
    redone = sum(m["steps_redone"] for m in summary["migrations"])
    assert (taken["rung"], taken["times"], taken["steps"]) == ("respawn", 2, redone)
    assert taken["seconds"] == pytest.approx(summary["downtime_total_s"])
    assert (summary["restarts"], summary["faults_not_injected"]) == ([], [])


def test_status_counts_the_ways_that_were_taken_while_the_job_runs(cli: Cli) -> None:
    options = ("--nproc-per-node", "2", "--inject", "kill:rank=1,step=20")
    process = cli.start("run", *options, "SCRIPT", script=TRAINS, STEPS="3000")

    def rungs() -> list[dict[str, Any]]:
        done = cli.run("status", "--json")
        return list(json.loads(done.stdout)["rungs"]) if done.returncode == 0 else []

    (taken,) = eventually("the loss is made good", rungs)
    assert (taken["rung"], taken["times"], taken["steps"] <= 1, taken["seconds"] > 0) == ("respawn", 1, True, True)
    assert re.search(r"rungs +respawn: 1 time, \d steps? done again, \d+\.\d s", cli.run("status").stdout)
    process.terminate()
    process.communicate(timeout=TIMEOUT_S)


def test_where_no_rank_is_left_the_script_starts_from_its_beginning_and_ends_the_job_at_once_if_it_fails(
    cli: Cli,
) -> None:
    fails = TRAINS.replace(
        "for step in range",
        'assert os.environ["TORCHELASTIC_RESTART_COUNT"] == "0", "begun anew"\n    for step in range',
    )
    process = cli.start(
        *("run", "--nproc-per-node", "2", "--json", "--buddy-every", "0"),
        *("--inject", "kill:rank=1,step=20", "--inject", "kill:rank=0,step=20", "SCRIPT"),
        script=fails,
        STEPS="60",
    )
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1, err
    (restart,) = summary_of(out)["restarts"]
    assert (restart["rung"], restart["steps"], restart["boundary"]) == ("script", 19, -1)
    assert restart["tried"][0].startswith("jit-checkpoint: no rank is left that holds the job's state")
    assert "begun anew" in err
    assert "not started again: the script has failed by itself" in err
    assert "it began with: rank" in err


@only_in_long
def test_without_a_spare_the_message_says_how_to_go_on(cli: Cli) -> None:
    expected = undisturbed(cli, 40)
    (temporary := cli.folder / "temporary").mkdir()
    process = cli.start(
        *(
            "run",
            "--nproc-per-node",
            "2",
            "--respawn-limit=0",
            "--max-restarts",
            "0",
            "--jit-dir",
            "a jit",
            "--inject",
            "kill:rank=1,step=20",
            "SCRIPT",
        ),
        script=TRAINS,
        STEPS="40",
        TMPDIR=str(temporary),
    )
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 75, err
    assert list(temporary.glob("torchrelay-*")) == []
    command = re.search(r"hint: .*?(run --resume .*)", err)
    assert command is not None
    assert "not started again: it is not to be started again (--max-restarts 0)" in err
    other = cli.folder / "other.py"
    other.write_text((cli.folder / "train.py").read_text())
    refused = cli.start(*shlex.split(command[1].replace("train.py", "other.py")), STEPS="40")
    assert refused.wait(timeout=TIMEOUT_S) == 2
    assert "saved by train.py, this job runs other.py; resume the script that saved it" in refused.communicate()[1]
    resumed = cli.start(*shlex.split(command[1]), STEPS="40")
    rest, err = resumed.communicate(timeout=TIMEOUT_S)
    assert resumed.returncode == 0, err
    assert losses(out) + losses(rest) == expected
