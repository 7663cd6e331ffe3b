from __future__ import annotations

import dataclasses
import io
import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from torchrelay.cli.commands.check import remove_made
from torchrelay.cli.display import narrate
from torchrelay.cli.display.report_view import report_view
from torchrelay.cli.display.summary import RunSummary, fold
from torchrelay.protocol.events import CoverageKnown
from torchrelay.protocol.messages import Against, Coverage, RankGap
from torchrelay.protocol.names import BARS, LEFT
from torchrelay.protocol.security.transfer_protection import CHOICES, COSTS

ROW = Against("a process that dies", "partly", "a spare takes over")
GAP = RankGap((1,), "iterator", BARS, "it (cycle): unknown", "train.py", 7)
REPORT = Coverage(
    *("partly", "any rank can be replaced, with 1 exception", "train.py", 30, (ROW,), (GAP,), ("rows: data",)),
    *(0.1, 0.002, 0.001, 0.0001, 2048, 8192, 4096, 3),
)


def shown(coverage: Coverage, world_size: int = 2) -> str:
    console = Console(file=io.StringIO(), width=150)
    console.print(report_view(coverage, world_size))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_report_says_level_loop_cost_mechanisms_and_gaps_with_their_lines() -> None:
    text = shown(REPORT)
    for part in (
        "partly protected: any rank can be replaced, with 1 exception",
        "train.py:30",
        "3 tensors of 4.0 KiB on each rank, and a journal of 2.0 KiB in each step",
        "3.00 ms a step on the training thread (3.0 % of a step of 100.0 ms)",
        "8.0 KiB of shared memory",
        "a spare takes over",
        "train.py:7: it (cycle): unknown [rank 1]",
        "no rank can be replaced",
        "rows: data",
    ):
        assert part in text, text


def test_a_gap_of_all_ranks_names_none_and_one_without_a_line_no_file() -> None:
    gap = dataclasses.replace(GAP, ranks=(0, 1), file="", line=0, effect=LEFT)
    text = shown(dataclasses.replace(REPORT, gaps=(gap,)))
    assert "  it (cycle): unknown\n" in "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def event(coverage: Coverage) -> CoverageKnown:
    return CoverageKnown(json.loads(json.dumps(dataclasses.asdict(coverage))))


def test_the_short_form_is_one_line_and_comes_again_only_with_news() -> None:
    (line,) = narrate.notes(RunSummary(), event(REPORT))
    assert line.plain == ("warning: training loop train.py:30; 1 gap: `torchrelay status` has the report")
    after = fold(RunSummary(), event(REPORT), 0.0)
    assert after.coverage == REPORT
    assert narrate.notes(after, event(REPORT)) == []
    assert len(narrate.notes(after, event(dataclasses.replace(REPORT, gaps=())))) == 1


def test_what_a_check_has_made_is_removed_and_nothing_else(tmp_path: Path) -> None:
    made, kept = tmp_path / "made", tmp_path / "kept"
    (made / "deep").mkdir(parents=True)
    kept.mkdir()
    for path in (made / "deep" / "model.pt", kept / "new.txt", kept / "old.txt"):
        path.write_text("x")
    listed = [made, made / "deep", made / "deep" / "model.pt", kept / "new.txt", tmp_path / "gone", kept]
    (tmp_path / "list").write_bytes(b"".join(os.fsencode(p) + b"\n" for p in listed))
    remove_made(tmp_path / "list")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["kept", "list", "old.txt"]


def test_a_check_that_made_nothing_has_nothing_to_remove(tmp_path: Path) -> None:
    remove_made(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("level", ["unprotected", "pending"])
def test_every_level_can_be_shown(level: str) -> None:
    assert "train.py:30" in shown(dataclasses.replace(REPORT, level=level, against=()))


def test_how_tensors_are_protected_between_machines_is_shown_where_there_are_several() -> None:
    assert "encryption" not in shown(REPORT)
    meanings = {
        "off": "can read tensors on their way, and change the numbers in them",
        "integrity": "nobody on the network between machines can change tensors on their way, whoever listens",
        "full": "can read or change tensors",
    }
    for chosen, means in meanings.items():
        text = " ".join(shown(dataclasses.replace(REPORT, transfer_encryption=chosen)).split())
        assert f"between machines --transfer-encryption {chosen}: " in text
        assert means in text
        assert f"it takes {COSTS[chosen]} of the rate at which tensors travel" in text
        assert "has to be the same" not in text
    text = " ".join(shown(dataclasses.replace(REPORT, transfer_encryption="full,off")).split())
    assert "--transfer-encryption off: " in text
    assert "It has to be the same on all machines" in text


def test_what_protection_between_machines_costs_is_what_the_page_has() -> None:
    page = (Path(__file__).parents[4] / "docs" / "transfer.md").read_text()
    assert COSTS.keys() == set(CHOICES)
    for chosen, cost in COSTS.items():
        assert f"| `{chosen}` | {cost} |" in page


def test_what_copies_of_the_state_cost_is_shown_where_there_are_any() -> None:
    assert "host memory" not in shown(REPORT)
    copied = dataclasses.replace(REPORT, copy_every=50, copy_bytes=1 << 20, copy_s=0.01)
    text = shown(copied)
    assert "1.0 MiB of each rank's state in host memory every 50 steps, two of them kept" in text
    assert "10.00 ms of the training thread, 0.200 ms a step" in " ".join(text.split())
    assert "none is made yet" in shown(dataclasses.replace(copied, copy_bytes=0))
    assert "waits" not in text
    assert "training waits until all ranks have theirs" in " ".join(
        shown(dataclasses.replace(copied, copy_sync=True)).split()
    )
