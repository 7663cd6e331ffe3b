"""A just-in-time checkpoint that cannot be written, and what strikes in the middle of one."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cells import only_in_long
from support.cli_harness import TIMEOUT_S, Cli, eventually

TRAINS = """
    import os, pathlib, signal, sys, time, torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path("told-to-end").touch(), os._exit(0)))
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = DistributedDataParallel(torch.nn.Linear(16, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(60):
        loss = model(torch.randn(4, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
        if dist.get_rank() == 0:
            print(f"loss {loss.item().hex()}")
            if step == 10 and "SPOILS" in os.environ:
                pathlib.Path(os.environ["SPOILS"]).write_text("a file where a folder was to be")
    dist.destroy_process_group()
"""
RUN = ("run", "--nproc-per-node", "2", "--respawn-limit", "0", "--json", "--events", "events.jsonl", "--jit-dir", "jit")
LOSS = ("--inject", "kill:rank=1,step=20")
NO_COPIES = ("--buddy-every", "0")
"""Copies of the first steps would be a rung of their own, where ranks hear late that nobody needs them."""


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    with Cli(tmp_path) as used:
        yield used


def told(cli: Cli) -> list[dict[str, Any]]:
    path = cli.folder / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def named(cli: Cli, name: str) -> list[dict[str, Any]]:
    return [event for event in told(cli) if event["name"] == name]


def losses(out: str) -> list[str]:
    return [line for line in out.splitlines() if line.startswith("loss ")]


def ends(process: subprocess.Popen[str]) -> tuple[str, str, dict[str, Any]]:
    out, err = process.communicate(timeout=TIMEOUT_S)
    return out, err, json.loads(out.splitlines()[-1])


@pytest.fixture
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("u")  # short: unix sockets are made below it
    with Cli(folder) as cli:
        out, _ = cli.start("run", "--nproc-per-node", "2", "SCRIPT", script=TRAINS).communicate(timeout=TIMEOUT_S)
    assert len(losses(out)) == 60
    return losses(out)


@only_in_long
def test_where_the_first_folder_cannot_be_written_the_second_one_is_and_the_job_goes_on(
    cli: Cli, expected: list[str]
) -> None:
    out, err, summary = ends(cli.start(*RUN, "--jit-dir", "other", *LOSS, "SCRIPT", script=TRAINS, SPOILS="jit"))
    assert summary["exit_code"] == 0, err
    (restart,) = summary["restarts"]
    assert (restart["rung"], restart["steps"]) == ("jit-checkpoint", 0)
    assert Path(restart["directory"]).parent == cli.folder / "other"
    assert any(f"{cli.folder}/jit: " in decision["text"] for decision in named(cli, "decision"))
    assert losses(out) == expected
    assert (1, False) in [(w["rank"], w["fenced"]) for w in named(cli, "worker_exited")]
    assert (0, True) not in [(w["rank"], w["fenced"]) for w in named(cli, "worker_exited")]


@only_in_long
def test_where_nothing_can_be_written_the_next_rung_is_tried_with_the_reason(cli: Cli, expected: list[str]) -> None:
    out, err, summary = ends(cli.start(*RUN, *NO_COPIES, *LOSS, "SCRIPT", script=TRAINS, SPOILS="jit"))
    assert summary["exit_code"] == 0, err
    (restart,) = summary["restarts"]
    assert (restart["rung"], restart["boundary"]) == ("script", -1)
    assert "the checkpoint cannot be written to any folder of --jit-dir" in restart["tried"][0]
    assert losses(out)[-60:] == expected


def test_a_rank_that_lives_is_not_killed_where_its_state_cannot_be_saved(cli: Cli) -> None:
    _, err, summary = ends(
        cli.start(*RUN, *NO_COPIES, "--max-restarts=0", *LOSS, "SCRIPT", script=TRAINS, SPOILS="jit")
    )
    assert summary["exit_code"] == 137, err
    assert "rank 1" in summary["reason"]
    assert "the checkpoint cannot be written to any folder of --jit-dir" in summary["reason"]
    assert [(w["rank"], w["fenced"]) for w in named(cli, "worker_exited")] == [(1, False)]
    assert (cli.folder / "told-to-end").exists(), "the script of rank 0 was to end by itself, with what it holds"


@only_in_long
def test_a_rank_that_is_killed_in_the_middle_of_its_save_leaves_the_one_before_to_go_on_from(
    cli: Cli, expected: list[str]
) -> None:
    faults = [*LOSS, "--inject", "kill:rank=1,step=30", "--inject", "kill:rank=0,step=30,phase=save"]
    out, err, summary = ends(cli.start(*RUN, *faults, "SCRIPT", script=TRAINS))
    assert (summary["exit_code"], summary["faults_not_injected"]) == (0, []), err
    first, second = summary["restarts"]
    assert (first["rung"], first["boundary"], first["steps"]) == ("jit-checkpoint", 19, 0)
    assert (second["rung"], second["boundary"], second["steps"]) == ("earlier-checkpoint", 19, 10)
    assert second["directory"] == first["directory"]
    assert second["tried"][0].startswith("jit-checkpoint: ")
    assert losses(out)[:29] + losses(out)[39:] == expected
    assert not (cli.folder / "jit").exists()


@pytest.mark.core
def test_a_command_that_is_killed_in_the_middle_of_a_save_loses_nothing_that_was_whole(
    cli: Cli, expected: list[str]
) -> None:
    faults = [*LOSS, "--inject", "kill:rank=1,step=30", "--inject", "stop:rank=0,step=30,phase=save"]
    process = cli.start(*RUN, *faults, "SCRIPT", script=TRAINS)
    eventually("the save is half done", lambda: len(named(cli, "fault_injected")) == 3)
    process.kill()
    process.communicate(timeout=TIMEOUT_S)
    whole, torn = [], []
    for folder in filter(Path.is_dir, (cli.folder / "jit").iterdir()):
        (whole if (folder / "manifest.json").exists() else torn).append(folder)
    assert [len(whole), len(torn)] == [1, 1]
    assert list((torn[0] / "rank-0-tensors").glob(".tensors-00000.bin.partial"))
    refused = cli.start("run", "--nproc-per-node", "2", "--resume", str(torn[0]), "SCRIPT")
    assert refused.wait(timeout=TIMEOUT_S) == 2
    assert "there is no manifest.json in it" in refused.communicate()[1]
    resumed = cli.start("run", "--nproc-per-node", "2", "--resume", str(whole[0]), "SCRIPT")
    rest, err = resumed.communicate(timeout=TIMEOUT_S)
    assert resumed.returncode == 0, err
    assert losses(rest) == expected[19:]


def test_the_command_that_a_message_tells_to_type_is_whole_and_goes_on_when_pasted(
    cli: Cli, expected: list[str]
) -> None:
    given = [
        "--jit-dir",
        "second place",
        "--spares",
        "0",
        *NO_COPIES,
        "--rehearse-every",
        "0",
        "--max-restarts=0",
    ]
    out, err, summary = ends(cli.start(*RUN, *given, *LOSS, "SCRIPT", script=TRAINS))
    assert summary["exit_code"] == 75, err
    (command,) = re.findall(r"hint: (.*--resume.*)", err)
    words = shlex.split(command)
    assert words.count("--jit-dir") == 2
    assert {"--max-restarts", "--buddy-every", "--rehearse-every", "--json", "--events"} <= set(words)
    rest, err, _ = ends(cli.start_program("sh", "-c", command))
    assert losses(out) + losses(rest) == expected, err
