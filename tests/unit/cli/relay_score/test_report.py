from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from torchrelay.cli.relay_score import plot, report
from torchrelay.cli.relay_score.results import FellShort, Result, Results
from torchrelay.cli.struck_runs.cells import Cell
from torchrelay.protocol.errors import UserError


def result(entry: str, phase: str, kind: str, rank: int, outcome: str, reason: str = "because") -> Result:
    return Result(Cell(entry, phase, kind, rank, 5), outcome, reason, 1.5, "abc", int(kind != "planned"))


RESULTS = [
    result("b", "gate", "kill", 0, "identical"),
    result("b", "gate", "kill", 1, "wrong", "rank 1: model differs"),
    result("a", "data", "kill", 0, "fallback", "no spare"),
    result("a", "head", "planned", 1, "identical"),
]
ORDER = ["a", "b", "c"]
HERE = "gloo on cpu"
ABOUT = {"commit": "abc", "seed": 3, "where": HERE, "processors": 2, "versions": {"torch": "2.13.0"}}


def text() -> list[str]:
    written = io.StringIO()
    console = Console(width=100, file=written, soft_wrap=True)
    for part in report.as_text(RESULTS, ORDER, {"d": "needs tqdm"}, "nccl on cuda (2 x imitated GPU)"):
        console.print(part)
    return written.getvalue().splitlines()


def test_each_kind_has_a_matrix_with_rows_as_in_the_manifest_and_a_mark_for_each_rank() -> None:
    lines = [line.split() for line in text()]
    assert lines[:3] == [["kill", "data", "gate"], ["a", "◐"], ["b", "●W"]]
    assert lines[4:6] == [["planned", "head"], ["a", "●"]]


def test_each_cell_that_is_not_identical_has_its_reason_on_one_line_the_worst_first() -> None:
    told = [line for line in text() if ":rank=" in line]
    assert told == [
        "wrong        b: kill:rank=1,step=5,phase=gate: rank 1: model differs",
        "fallback     a: kill:rank=0,step=5,phase=data: no spare",
    ]


def test_the_score_is_the_share_of_identical_cells() -> None:
    assert text()[-1] == "relay score 50.0 %: 2 of 4 cells identical, nccl on cuda (2 x imitated GPU)"
    assert report.score([]) == 0.0


def test_entries_that_were_left_out_are_told() -> None:
    assert "not run: d: needs tqdm" in text()


def test_the_json_has_every_cell_and_the_count_of_each_outcome() -> None:
    written = json.loads(json.dumps(report.as_json(RESULTS, {"commit": "abc", "seed": 3}, {"d": "needs tqdm"})))
    assert (written["score"], written["cells"], written["commit"], written["seed"]) == (0.5, 4, "abc", 3)
    assert written["outcomes"] == {
        "identical": 2, "redone": 0, "fallback": 1, "no-migration": 0, "not-injected": 0, "lost": 0, "wrong": 1,
    }  # fmt: skip
    assert written["results"][1]["cell"] == {
        "entry": "b",
        "phase": "gate",
        "kind": "kill",
        "rank": 1,
        "step": 5,
        "other": -1,
        "again": 0,
    }
    assert written["left_out"] == {"d": "needs tqdm"}


def test_the_markdown_has_a_row_for_each_entry_and_each_reason() -> None:
    lines = report.as_markdown(RESULTS, ORDER, ABOUT).splitlines()
    assert (
        lines[0]
        == f"**relay score 50.0 %: 2 of 4 cells identical** ({HERE}, 2 processors, torch 2.13.0, seed 3; commit abc)"
    )
    assert "| b | 1 |  |  |  |  |  | 1 | 1 |" in lines
    assert lines[-2] == "| b: kill:rank=1,step=5,phase=gate | wrong | rank 1: model differs |"


def test_how_many_steps_were_done_again_is_told_and_going_further_back_is_not_identical() -> None:
    further = [dataclasses.replace(result("c", "gate", "kill", 0, "redone"), steps_redone=n) for n in (2, 3, 5)]
    lines = report.as_markdown([*RESULTS, *further], ORDER, ABOUT).splitlines()
    closing = "relay score 28.6 %: 2 of 7 cells identical, 3 more with the same numbers after going back further"
    assert lines[0] == f"**{closing}** ({HERE}, 2 processors, torch 2.13.0, seed 3; commit abc)"
    assert "| c |  | 3 |  |  |  |  |  | 2 to 5 |" in lines


def test_the_markdown_names_what_was_not_run() -> None:
    lines = report.as_markdown(RESULTS, ORDER, ABOUT, left_out={"d": "needs tqdm"}).splitlines()
    assert lines[-3:] == ["Not run:", "", "- d: needs tqdm"]


def test_results_of_several_commits_name_them_all() -> None:
    later = dataclasses.replace(RESULTS[0], commit="def")
    assert "; commits abc (4 cells), def (1 cells))" in report.as_markdown([*RESULTS, later], ORDER, ABOUT)


def test_shared_runs_that_fell_short_are_told_and_outlive_an_interruption(tmp_path: Path) -> None:
    short = FellShort("alpha", ["kill:rank=0,step=4,phase=gate"], "wrong", "rank 1: model differs")
    Results(tmp_path / "results.jsonl", resume=True, where=HERE).fell_short(short)
    again = Results(tmp_path / "results.jsonl", resume=True, where=HERE)
    assert again.short == [short]
    shared = [dataclasses.replace(RESULTS[0], together=3), *RESULTS[1:]]
    page = report.as_markdown(shared, ORDER, ABOUT, again.short)
    assert "1 cells shared a run with others. 1 shared runs fell short (1 wrong)" in page
    assert "- alpha: kill:rank=0,step=4,phase=gate: wrong: rank 1: model differs" in page
    assert report.as_json(shared, ABOUT, {}, again.short)["fell_short"] == [dataclasses.asdict(short)]
    assert Results(tmp_path / "results.jsonl", resume=False, where=HERE).short == []


def test_a_page_gets_the_results_between_its_marks_and_keeps_the_rest() -> None:
    page = f"# Title\n\n{report.BEGIN}\nold\n{report.END}\n\nThe rest.\n"
    once = report.with_results(page, "new\n")
    assert once == f"# Title\n\n{report.BEGIN}\nnew\n{report.END}\n\nThe rest.\n"
    assert report.with_results(once, "new\n") == once
    for without in ("# Title\n", f"{report.END} {report.BEGIN}"):
        with pytest.raises(ValueError, match="to write between"):
            report.with_results(without, "new\n")


def test_of_several_ranks_the_picture_shows_the_worst() -> None:
    assert report.worst(["identical", "wrong", "lost"]) == "wrong"
    columns = report.column_names(RESULTS)
    assert columns == [("kill", "data"), ("kill", "gate"), ("planned", "head")]
    assert plot._numbers(RESULTS, ["a", "b"], columns) == [[3, 0, 1], [0, 7, 0]]


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot.draw(RESULTS, ORDER, tmp_path / "score.png")
    assert (tmp_path / "score.png").read_bytes().startswith(b"\x89PNG")


def test_results_outlive_an_interruption_only_if_that_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    first = Results(path, resume=True, where=HERE)
    for one in RESULTS:
        first.add(one)
    again = Results(path, resume=True, where=HERE)
    assert again.all == RESULTS
    assert again.of(RESULTS[1].cell) == RESULTS[1]
    assert again.of(Cell("b", "gate", "kill", 0, 6)) is None
    assert Results(path, resume=False, where=HERE).all == []


def test_results_of_one_device_are_not_mixed_with_those_of_another(tmp_path: Path) -> None:
    Results(tmp_path / "results.jsonl", resume=False, where=HERE).add(RESULTS[0])
    with pytest.raises(UserError, match="has results of gloo on cpu, and these would be of nccl on cuda"):
        Results(tmp_path / "results.jsonl", resume=True, where="nccl on cuda (1 x GPU)")


def test_a_file_of_results_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text('{"cell": 3}\n')
    with pytest.raises(UserError, match="line 1: not a result"):
        Results(tmp_path / "results.jsonl", resume=True, where=HERE)
