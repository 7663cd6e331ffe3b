"""Which faults a drill chooses, what it makes of the command line, and its exit code."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest
from jsonschema import ValidationError, validate
from support.repository_script import script

from torchrelay.cli.drill import practice, promise
from torchrelay.cli.drill.advice import ScriptChange
from torchrelay.cli.drill.options import GivenDrill, check
from torchrelay.cli.drill.practice import DrillTarget, StruckCell, choose
from torchrelay.cli.drill.program import DrilledProgram
from torchrelay.cli.drill.promise import Outcome
from torchrelay.cli.drill.records import Line, Record, RunComparison
from torchrelay.cli.drill.result import Drill, as_json
from torchrelay.cli.drill.runs import DrillRun, Reference
from torchrelay.cli.drill.undisturbed import Undisturbed
from torchrelay.cli.folders import working_folder
from torchrelay.cli.machine import LocalMachine
from torchrelay.cli.struck_runs.cells import Cell, all_cells
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.options.faults import INJECT_PHASES

TARGET = DrillTarget("train.py", 2, 40, phases=(*INJECT_PHASES, "first", "head"))
SCHEMA = script("generate_schemas").schemas()["drill.schema.json"]
CELL = Cell("train.py", "backward", "kill", 1, 5)


def chosen(count: int, seed: int = 0) -> list[Cell]:
    return choose(all_cells([TARGET], seed, (), practice.KINDS, ()), count, seed)


def test_twelve_faults_are_half_deaths_and_of_every_kind() -> None:
    kinds = Counter(cell.kind for cell in chosen(12))
    assert kinds == {"kill": 6, "stop": 2, "joiner": 2, "planned": 2}


@pytest.mark.parametrize("seed", range(5))
def test_deaths_are_in_different_phases_before_any_comes_twice(seed: int) -> None:
    assert len({cell.phase for cell in chosen(12, seed) if cell.kind == "kill"}) == 6


def test_the_same_seed_chooses_the_same_faults() -> None:
    assert chosen(12, 3) == chosen(12, 3) != chosen(12, 4)


def test_no_fault_comes_twice_and_there_are_no_more_than_there_are() -> None:
    everything = chosen(1000)
    assert len({cell.name for cell in everything}) == len(everything) < 1000


def given(folder: Path, **options: object) -> GivenDrill:
    (folder / "train.py").write_text("")
    return GivenDrill(**{"script": "train.py", "workdir": folder, **options})  # type: ignore[arg-type]  # of any type


def checked(folder: Path, **options: object) -> practice.DrilledProgram:
    return check(given(folder, **options), LocalMachine(), {}, ()).program


def test_the_script_is_looked_for_in_the_working_folder(tmp_path: Path) -> None:
    assert checked(tmp_path) == DrilledProgram("train.py", ranks=2, folder=tmp_path)
    with pytest.raises(UserError, match=r"other\.py"):
        checked(tmp_path, script="other.py")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nproc_per_node": "1"}, "2 or more"),
        ({"steps": 3}, "--steps 3"),
        ({"kinds": "kill,bang"}, "--kinds bang"),
        ({"phases": "lunch"}, "--phases lunch"),
        ({"workdir": Path("/nowhere")}, "no such folder"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, options: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        checked(tmp_path, **options)


def test_copies_of_state_are_asked_of_torchrelay(tmp_path: Path) -> None:
    assert checked(tmp_path, buddy_every=4, buddy_sync=True).relay_options == ("--buddy-every=4", "--buddy-sync")


def test_each_run_has_a_copy_of_the_folder_without_caches(tmp_path: Path) -> None:
    folder, copy = tmp_path / "a", tmp_path / "b"
    for name in ("data", ".git", "__pycache__", "venv"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_text(name)
    (folder / "venv" / "pyvenv.cfg").write_text("")
    working_folder.copy(folder, copy)
    assert sorted(p.name for p in copy.iterdir()) == ["data"]


def test_a_folder_that_is_too_large_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with open(tmp_path / "large", "wb") as file:
        file.truncate(300 << 20)
    with pytest.raises(UserError, match="--workdir"):
        working_folder.copy(tmp_path, tmp_path / "copy")


def test_a_script_in_the_folder_runs_from_the_copy_and_another_one_where_it_is() -> None:
    def command(script: str) -> list[str]:
        return DrilledProgram(script, ("--lr", "1"), folder=Path("/home/a")).command(Path("/tmp/c"))

    assert command("src/train.py") == ["src/train.py", "--lr", "1"]
    assert command("/home/a/train.py") == ["/tmp/c/train.py", "--lr", "1"]
    assert command("/opt/train.py") == ["/opt/train.py", "--lr", "1"]
    assert DrilledProgram("pkg.train", module=True).command(Path("/tmp/c")) == ["-m", "pkg.train"]


def drill(*outcomes: str, judged: tuple[str, ...] = ("parameters",), differences: tuple[str, ...] = ()) -> Drill:
    record = Record([Line(1, {"parameters": "a"})])
    differs = {} if judged else {"parameters": "rank 0, step 1"}
    plain = DrillRun(0, [record], 1.0, Path("/tmp/c"))
    found = Undisturbed(RunComparison(judged, differs), Reference([record], judged), plain, None, differences)
    return Drill(
        ("drill", "train.py"), found, [StruckCell(CELL, Outcome(name, "why", "how"), 1.0) for name in outcomes]
    )


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (drill(promise.IDENTICAL, promise.NOT_STRUCK), 0),
        (drill(promise.IDENTICAL, promise.OTHERWISE), 3),
        (drill(promise.OTHERWISE, promise.REFUSED), 4),
        (drill(promise.REFUSED, promise.FALSE_PROMISE), 5),
        (drill(promise.FALSE_PROMISE, promise.WRONG), 6),
        (drill(promise.IDENTICAL, differences=("rank 0, step 2: other parameters",)), 6),
        (drill(judged=()), 7),
        (drill(promise.NOT_STRUCK), 8),
    ],
)
def test_the_exit_code_is_that_of_the_worst(found: Drill, code: int) -> None:
    assert found.exit_code == code == as_json(found).exit_code


def test_the_object_of_json_is_as_its_schema_says() -> None:
    lines = [Line(1, {"parameters": "a"}, entered_s=step, left_s=step) for step in range(4)]
    run = DrillRun(0, [Record(lines)], 1.0, Path())
    compared = Undisturbed(RunComparison(("parameters",), {"buffers": "rank 0, step 2"}), Reference((), ()), run, run)
    gap = ScriptChange("train.py", 7, "a file is open", "the rank is not protected", "close it")
    found = Drill(("drill", "train.py"), compared, [struck(promise.WRONG)], [gap], {"torch": "2.13.0"})
    told = json.loads(json.dumps(asdict(as_json(found))))
    validate(told, SCHEMA)
    assert told["faults"][0]["outcome"] == promise.WRONG
    assert (told["outcomes"][promise.WRONG], told["outcomes"][promise.IDENTICAL]) == (1, 0)
    assert told["changes"] == [asdict(gap)]
    assert told["cost"]["step_ratio"] == 1.0
    for name in told:
        with pytest.raises(ValidationError, match=f"'{name}' is a required property"):
            validate({key: value for key, value in told.items() if key != name}, SCHEMA)


def test_the_score_counts_what_has_struck() -> None:
    assert drill(promise.IDENTICAL, promise.REFUSED, promise.NOT_STRUCK).score == 0.5
    assert drill(promise.NOT_STRUCK).score == 0.0


def struck(outcome: str, together: int = 1) -> practice.StruckCell:
    return practice.StruckCell(Cell("train", "data", "kill", 0, 5), Outcome(outcome, "", ""), 1.0, together)


@pytest.mark.parametrize(
    ("alone", "together", "worse"),
    [
        ("identical", "false-promise", "together"),
        ("refused", "wrong", "together"),
        ("wrong", "false-promise", "alone"),
        ("identical", "not-struck", "alone"),
        ("identical", "refused", "alone"),
    ],
)
def test_a_promise_that_is_broken_behind_other_faults_counts(alone: str, together: str, worse: str) -> None:
    by_itself, with_others = struck(alone), struck(together, together=3)
    assert practice.worse_of(by_itself, with_others) is (with_others if worse == "together" else by_itself)
    assert practice.worse_of(by_itself) is by_itself
