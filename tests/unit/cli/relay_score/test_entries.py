from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torchrelay.cli.relay_score.entries import find_corpus, load, select
from torchrelay.cli.struck_runs.cells import PHASES
from torchrelay.protocol.errors import UserError

RECORD = {"name": "one", "group": "loops", "program": "one.py", "steps": 12}


def manifest(folder: Path, *records: Any) -> Path:
    (folder / "one.py").touch()
    (folder / "corpus.json").write_text(json.dumps({"entries": records}))
    return folder


def test_the_corpus_of_the_checkout_is_whole() -> None:
    corpus = find_corpus(None)
    entries = load(corpus, PHASES)
    assert {e.group for e in entries} >= {"loops", "data", "state", "ddp", "sharded", "frameworks", "side-work"}
    for entry in entries:
        assert entry.epoch_step < entry.steps, entry.name
    for file in corpus.rglob("*.py"):
        assert "torchrelay" not in file.read_text().lower(), f"{file.name} is to know nothing of what it is run with"
    programs = {corpus / e.program for e in entries if e.launch == "script"}
    helpers = {corpus / "programs" / f"{name}.py" for name in ("ending", "pace", "setting", "titan")}
    assert set((corpus / "programs").glob("*.py")) == programs | helpers


def test_a_record_needs_no_more_than_its_name_group_program_and_steps(tmp_path: Path) -> None:
    (entry,) = load(manifest(tmp_path, RECORD), ("data",))
    assert (entry.ranks, entry.phases, entry.launch, entry.buddy_every) == (2, ("data",), "script", 0)
    assert entry.command(tmp_path) == [str(tmp_path / "one.py")]


def test_a_module_is_started_as_one_and_finds_more_of_the_corpus(tmp_path: Path) -> None:
    record = RECORD | {"launch": "module", "program": "package.train", "args": ["--steps", "12"], "path": ["a", "b"]}
    for folder in "ab":
        (tmp_path / folder).mkdir()
    (entry,) = load(manifest(tmp_path, record), PHASES)
    assert entry.command(tmp_path) == ["-m", "package.train", "--steps", "12"]
    assert entry.variables(tmp_path) == {"PYTHONPATH": f"{tmp_path}/a:{tmp_path}/b"}
    (without,) = load(manifest(tmp_path, RECORD), PHASES)
    assert without.variables(tmp_path) == {}


def test_what_an_entry_needs_and_is_not_there_is_named(tmp_path: Path) -> None:
    (entry,) = load(manifest(tmp_path, RECORD | {"requires": ["json", "no_such_package"]}), PHASES)
    assert entry.missing() == ["no_such_package"]


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([RECORD, RECORD], "the name one is given twice"),
        ([RECORD | {"colour": "red"}], "colour"),
        ([RECORD | {"program": "two.py"}], "there is no two.py"),
        ([RECORD | {"path": ["three"]}], "there is no three"),
        ([RECORD | {"launch": "notebook"}], "launch is one of script, module"),
        ([RECORD | {"steps": 3}], "8 steps and 2 ranks"),
        (["one"], "one"),
    ],
)
def test_a_manifest_that_cannot_be_right_is_refused(tmp_path: Path, records: list[Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        load(manifest(tmp_path, *records), PHASES)


def test_a_folder_without_a_manifest_is_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--corpus .*: there is no corpus\.json in it"):
        find_corpus(tmp_path)


def test_entries_are_chosen_by_name_and_by_group(tmp_path: Path) -> None:
    entries = load(
        manifest(tmp_path, RECORD, RECORD | {"name": "two"}, RECORD | {"name": "x", "group": "data"}), PHASES
    )
    assert [e.name for e in select(entries, ["data", "two"])] == ["two", "x"]
    assert select(entries, []) == entries
    with pytest.raises(UserError, match="--entry three: no such entry or group; there are one, two, x"):
        select(entries, ["three"])
