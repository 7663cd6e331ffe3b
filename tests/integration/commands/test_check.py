"""`torchrelay check` with real ranks: each kind of script that cannot be protected is found, and named with its line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate
from support.cells import few
from support.check_scripts import marked, script
from support.cli_harness import Cli
from support.repository_script import script as repository_script
from support.training import SCRIPTS

from torchrelay.protocol.names import ALONE, BARS, BEHIND_UPDATE, LEFT, PART_OF_STEP

CHECK_SCHEMA = repository_script("generate_schemas").schemas()["check.schema.json"]
PROTECTED, FAILED, PARTLY, UNPROTECTED = 0, 1, 3, 4


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    with Cli(tmp_path) as used:
        yield used


def check(cli: Cli, folder: Path, name: str, *options: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, report and what was said, with two ranks."""
    path = folder / f"{name}.py"
    path.write_text(script(name))
    done = cli.run("check", "--json", "--nproc-per-node", "2", *options, str(path))
    told = json.loads(done.stdout) if done.stdout else {}
    if told:
        validate(told, CHECK_SCHEMA)
    assert told.get("exit_code", done.returncode) == done.returncode
    return done.returncode, told.get("coverage") or {}, done.stderr


def named(report: dict[str, Any], folder: Path, name: str) -> list[tuple[str, int]]:
    """Kind and line of each gap, those without a line as 0."""
    path = str(folder / f"{name}.py")
    assert {gap["file"] for gap in report["gaps"]} <= {path, ""}
    return sorted((gap["kind"], gap["line"]) for gap in report["gaps"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "status", "effects"),
    few(
        1,
        [
            ("state", UNPROTECTED, [BARS, BARS, LEFT, LEFT]),
            ("closure_called_again", PARTLY, [PART_OF_STEP]),
            ("generator_in_a_variable", UNPROTECTED, [BARS]),
            ("library_comm_hook", UNPROTECTED, [BARS]),
        ],
    ),
)
def test_what_cannot_be_protected_is_named_with_its_line(
    cli: Cli, tmp_path: Path, name: str, status: int, effects: list[str]
) -> None:
    code, report, said = check(cli, tmp_path, name)
    assert code == status, (report, said)
    expected = sorted(marked(script(name)))
    assert expected
    assert named(report, tmp_path, name) == expected
    assert [g["effect"] for g in sorted(report["gaps"], key=lambda g: (g["kind"], g["line"]))] == effects
    assert all(g["ranks"] == [0, 1] for g in report["gaps"])
    assert report["level"] == {PARTLY: "partly", UNPROTECTED: "unprotected"}[status]


@pytest.mark.slow
def test_what_a_device_holds_that_no_migration_carries_is_named_with_its_line(cli: Cli, tmp_path: Path) -> None:
    """A stand-in plays NVSHMEM for Python: no device is there."""
    (tmp_path / "nvshmem").mkdir()
    (tmp_path / "nvshmem" / "core.py").write_text("def init():\n    pass\n")
    code, report, said = check(cli, tmp_path, "memory_of_all_ranks")
    assert code == UNPROTECTED, (report, said)
    assert named(report, tmp_path, "memory_of_all_ranks") == sorted(marked(script("memory_of_all_ranks")))
    (gap,) = report["gaps"]
    assert (gap["effect"], gap["ranks"]) == (BARS, [0, 1])
    assert "memory of NVSHMEM" in report["reason"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "status", "kinds", "effect", "text"),
    few(
        2,
        [
            ("no_loop", UNPROTECTED, ["no-loop"], BARS, "is in no loop of the script's own files"),
            ("no_replica", PARTLY, ["no-replica"] * 2, ALONE, "mine"),
            ("large_tensor_after_the_step", PARTLY, ["large-fresh-tensor"], BEHIND_UPDATE, "big"),
            ("collectives_beside", PARTLY, ["side-thread"], PART_OF_STEP, "collectives on another thread"),
        ],
    ),
)
def test_what_no_line_makes_is_named_too(
    cli: Cli, tmp_path: Path, name: str, status: int, kinds: list[str], effect: str, text: str
) -> None:
    code, report, said = check(cli, tmp_path, name)
    assert code == status, (report, said)
    assert [gap["kind"] for gap in report["gaps"]] == kinds
    assert all(gap["effect"] == effect and text in gap["text"] for gap in report["gaps"])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_process_group", "no rank has set up its process group"),
        ("other_backend", "the process group uses fake"),
    ],
)
def test_a_script_that_never_is_protected_is_told_why(cli: Cli, tmp_path: Path, name: str, reason: str) -> None:
    code, report, said = check(cli, tmp_path, name)
    assert code == UNPROTECTED, (report, said)
    assert report["level"] == "unprotected"
    assert reason in report["reason"]


def test_code_on_the_command_line_is_not_protected(cli: Cli) -> None:
    done = cli.run("check", "--json", "--no-python", sys.executable, "-c", "print('code')")
    assert done.returncode == UNPROTECTED, done.stderr
    assert "given with -c" in json.loads(done.stdout)["coverage"]["reason"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "bug"), few(1, [("failing_in_a_step", "a bug in the loop"), ("failing", "a bug of the script")])
)
def test_a_script_that_fails_is_no_verdict(cli: Cli, tmp_path: Path, name: str, bug: str) -> None:
    code, _, said = check(cli, tmp_path, name)
    assert code == FAILED
    assert f"ValueError: {bug}" in said  # the traceback of the ranks, whose output is not shown otherwise


def test_a_set_up_without_end_is_cut_off(cli: Cli, tmp_path: Path) -> None:
    code, report, said = check(cli, tmp_path, "endless_set_up", "--timeout", "24")
    assert code == UNPROTECTED, said
    assert "cut off by --timeout before 5 steps were done" in report["reason"]
    assert "has not come round yet" in report["reason"]


@pytest.mark.core
def test_a_sound_script_is_protected_at_a_measured_cost(cli: Cli, tmp_path: Path) -> None:
    code, report, said = check(cli, tmp_path, "sound")
    assert code == PROTECTED, (report, said)
    source = script("sound").splitlines()
    assert (report["file"], source[report["line"] - 1]) == (str(tmp_path / "sound.py"), "for (x,) in batches():")
    assert 0 < report["head_s"] < 1
    assert 0 < report["gate_s"] < 1
    assert 0 < report["barrier_s"] < 1
    assert 0 < report["journal_bytes"] < report["memory_bytes"]
    assert [row["answer"] for row in report["against"]] == ["yes", "yes", "yes", "no"]
    assert [told.partition(": ")[2] for told in report["rehearsed"]] == ["rank 0 of 2, bitwise", "rank 1 of 2, bitwise"]


@pytest.mark.core
def test_a_check_leaves_nothing_behind_and_changes_no_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("as it was")
    (tmp_path / "best.pt").write_text("a model")
    for name in ("replaced.txt", "moved.txt", "old/log.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("as it was")
    path = tmp_path / "traces.py"
    path.write_text(script("traces"))
    before = sorted(p.name for p in tmp_path.iterdir())
    done = cli.run("check", "--nproc-per-node", "2", str(path))
    assert done.returncode == PROTECTED, done.stderr
    assert "a whole run" not in done.stdout + done.stderr
    assert f"{path}:" in done.stdout
    assert (tmp_path / "kept.txt").read_text() == "as it was"
    assert (tmp_path / "best.pt").read_text() == "a model"
    for name in ("replaced.txt", "moved.txt", "old/log.txt"):
        assert (tmp_path / name).read_text() == "as it was"
    assert sorted(p.name for p in tmp_path.iterdir() if p != cli.state) == [n for n in before if n != cli.state.name]
    assert list(cli.state.iterdir()) == []


EPOCHS = """
    import os
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    dist.init_process_group("gloo")
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(4000, 3), torch.randn(4000, 1))
    training, validation = DataLoader(data, batch_size=2), DataLoader(data, batch_size=2)
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(1000):
        for number, (x, y) in enumerate(training):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        assert number == len(training) - 1
        losses = [torch.nn.functional.mse_loss(model(x), y).item() for x, y in validation]
        BEARS_IT
        if dist.get_rank() == 0:
            torch.save(model.state_dict(), "new.pt")
            os.replace("new.pt", "best.pt")
"""


def test_an_epochs_end_is_come_through_within_seconds(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "best.pt").write_text("a model")
    done = cli.run("check", "--json", "--nproc-per-node", "2", "SCRIPT", script=EPOCHS.replace("BEARS_IT", "pass"))
    told = json.loads(done.stdout)
    assert done.returncode == PROTECTED, (told, done.stderr)
    assert told["gone_through"]["cut_failed"] == ""
    assert told["steps"] == 10
    events = told["gone_through"]["events"]
    assert [event["kind"] for event in events] == ["epoch", "evaluation", "save"]
    assert {event["file"] for event in events} == {str(tmp_path / "train.py")} == {told["coverage"]["file"]}
    assert (tmp_path / "best.pt").read_text() == "a model"
    assert not (tmp_path / "new.pt").exists()


def test_a_script_that_does_not_bear_cut_loaders_is_looked_at_as_it_is(cli: Cli) -> None:
    script = EPOCHS.replace("BEARS_IT", "assert len(losses) == len(data) // 2")
    done = cli.run("check", "--json", "--nproc-per-node", "2", "SCRIPT", script=script)
    told = json.loads(done.stdout)
    assert done.returncode == PROTECTED, (told, done.stderr)
    assert told["gone_through"]["events"] == []
    assert "AssertionError" in told["gone_through"]["cut_failed"]


def test_what_cannot_be_set_up_again_is_found_by_a_check(cli: Cli, tmp_path: Path) -> None:
    path = SCRIPTS / "rehearsed.py"
    done = cli.run("check", "--json", "--nproc-per-node", "2", str(path), str(tmp_path / "out"), "database")
    report = json.loads(done.stdout)["coverage"]
    assert done.returncode == PARTLY, (report, done.stderr)
    failed, whole = report["rehearsed"]
    assert failed.endswith("rank 0 of 2 could not be replaced: OperationalError: table losses already exists")
    assert whole.endswith("rank 1 of 2, bitwise")
    (gap,) = report["gaps"]
    assert "CREATE TABLE" in path.read_text().splitlines()[gap["line"] - 1]
    assert gap["ranks"] == [0]
