from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from wild import report
from wild.programs import Manifest, Program, load


def program(name: str, *, added_last: bool = False) -> Program:
    return Program(name=name, shape="", command=("t.py",), environment="e", added_last=added_last)


def result(**outcomes: int) -> dict[str, Any]:
    bad = [
        {"faults": ["kill:rank=0"], "outcome": name.replace("_", "-"), "reason": f"because of {name}"}
        for name in outcomes
        if name != "identical"
    ]
    drill = {
        "deterministic": True,
        "with_torchrelay_undisturbed": [],
        "cost": {"step_ratio": 1.02},
        "outcomes": {name.replace("_", "-"): count for name, count in outcomes.items()},
        "faults": bad,
    }
    return {"commit": "abc", "drill": drill}


MANIFEST = Manifest((program("one"), program("two"), program("late", added_last=True)), {}, {})


def test_programs_that_are_added_last_have_a_sum_of_their_own() -> None:
    found = {
        "one": result(identical=3),
        "two": result(identical=1, false_promise=2),
        "late": result(identical=5, wrong=1),
    }
    text = report.table(MANIFEST, found)
    assert "- chosen first: 4 of 6 cells identical (66.7 %); 2 false-promise" in text
    assert "- added last, first run: 5 of 6 cells identical (83.3 %); 1 wrong" in text
    assert "| two | same without a fault | 1.02 | 1 |  |  | 2 |  |  |" in text


def test_each_cell_that_is_not_identical_has_its_reason() -> None:
    assert report.reasons(MANIFEST, {"two": result(refused=1)}) == "- two: kill:rank=0: refused: because of refused"


def test_a_program_that_could_not_be_run_says_why() -> None:
    assert "- one: no such commit" in report.reasons(MANIFEST, {"one": {"problem": "no such commit"}})


def test_the_results_stand_between_the_marks_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.START}\nold\n{report.END}\nafter\n")
    report.write(MANIFEST, {"one": result(identical=1)}, page, tmp_path / "results.json")
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "1 of 1 cells identical" in text


def test_a_run_of_some_programs_leaves_the_rows_of_the_others(tmp_path: Path) -> None:
    page, beside = tmp_path / "page.md", tmp_path / "results.json"
    page.write_text(f"{report.START}\n{report.END}\n")
    names = [entry.name for entry in MANIFEST.programs[:2]]
    report.write(MANIFEST, {names[0]: result(identical=2, wrong=1)}, page, beside)
    first = page.read_text()
    report.write(
        MANIFEST, {names[1]: result(identical=1), names[0]: {"problem": "its source is not there"}}, page, beside
    )
    text = page.read_text()
    assert [line for line in first.splitlines() if names[0] in line] == [
        line for line in text.splitlines() if names[0] in line
    ]
    assert any(line.startswith(f"| {names[1]}") for line in text.splitlines())


def test_the_first_result_of_a_program_stays_and_a_later_one_stands_beside_it(tmp_path: Path) -> None:
    page, beside = tmp_path / "page.md", tmp_path / "results.json"
    page.write_text(f"{report.START}\n{report.END}\n")
    report.write(MANIFEST, {"late": result(identical=2, wrong=1)}, page, beside)
    assert "None." in page.read_text()
    for later in (result(identical=3), {**result(identical=2, refused=1), "commit": "def"}):
        report.write(MANIFEST, {"late": later}, page, beside)
    text = page.read_text()
    assert "added last, first run: 2 of 3 cells identical" in text, "a mend must not change what the first run gave"
    assert "- on def: late: same without a fault: 2 identical, 1 refused (kill:rank=0: because of refused)" in text
    assert "on abc: late" not in text, "of the later ones the newest counts"
    assert "all of them, each by its latest run: 2 of 3 cells identical (66.7 %); 1 refused" in text
    assert "| 2 |  |  |  | 1 | 2 identical, 1 refused |" in text


def test_the_manifest_can_be_read_and_names_what_each_program_needs() -> None:
    for entry in load().programs:
        assert entry.command
        assert not entry.repository or (len(entry.commit) == 40 and len(entry.sha256) == 64 and entry.file), entry.name


def test_a_program_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.toml"
    manifest.write_text(
        '[replace]\n[environment.e]\ntorch = []\npackages = []\n[[program]]\nname = "x"\nfoo = 1\ncommand = "t.py"\n'
    )
    with pytest.raises(TypeError, match="foo"):
        load(manifest)


def test_a_reason_names_files_without_the_folders_that_they_lay_in() -> None:
    text = "a tensor (bound at /data/runs/ibot/main_ibot.py:7), see https://a.b/c/d and n0.s0/1 in /x"
    assert report.without_folders(text) == "a tensor (bound at main_ibot.py:7), see https://a.b/c/d and n0.s0/1 in /x"
