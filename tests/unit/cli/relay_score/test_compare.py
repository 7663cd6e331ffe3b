from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torchrelay.cli.relay_score.compare import differences

RECORD = {"rank": 0, "losses": [(0.5).hex(), (0.25).hex()], "state": {"model": "a", "rng": "b"}}


def folder(path: Path, *records: dict[str, Any]) -> Path:
    path.mkdir()
    for rank, record in enumerate(records):
        (path / f"rank-{rank}.json").write_text(json.dumps(record))
    return path


def compared(tmp_path: Path, ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    return differences(folder(tmp_path / "a", ours), folder(tmp_path / "b", theirs), 1)


def test_the_same_is_no_difference(tmp_path: Path) -> None:
    assert compared(tmp_path, RECORD, RECORD) == []


def test_the_last_bit_of_a_loss_counts(tmp_path: Path) -> None:
    found = compared(tmp_path, RECORD, RECORD | {"losses": [(0.5).hex(), "0x1.0000000000001p-2"]})
    assert found == ["rank 0: 1 of 2 losses differ, the first is number 2: 0.25000000000000006 for 0.25"]


def test_a_part_of_the_state_that_differs_is_named(tmp_path: Path) -> None:
    found = compared(tmp_path, RECORD, RECORD | {"state": {"model": "c", "rng": "b"}})
    assert found == ["rank 0: model differs"]


def test_a_part_that_is_missing_on_either_side_is_a_difference(tmp_path: Path) -> None:
    found = compared(tmp_path, RECORD, RECORD | {"state": {"model": "a", "more": "b"}})
    assert found == ["rank 0: more is missing", "rank 0: rng is missing"]


def test_nothing_on_both_sides_is_a_difference(tmp_path: Path) -> None:
    empty = {"rank": 0, "losses": [], "state": {}}
    assert compared(tmp_path, empty, empty) == ["rank 0: the reference has no losses or no state"]


def test_a_rank_that_wrote_nothing_is_a_difference(tmp_path: Path) -> None:
    found = differences(folder(tmp_path / "a", RECORD), folder(tmp_path / "b"), 1)
    assert found == ["rank 0: nothing was written in this run"]
