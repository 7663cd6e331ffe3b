from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.training import differences, steps_done

PARTS = ("parameters", "buffers", "training", "optimizer", "rng_torch", "rng_python", "rng_numpy", "scheduler")
STATE = dict.fromkeys(PARTS, "digest")


def leave(folder: Path, number: int, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    record = {"rank": number, "losses": ["0x1.0p+0", "0x1.8p+0"], "state": STATE} | changes
    (folder / f"rank-{number}.json").write_text(json.dumps(record))
    return folder


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    leave(tmp_path / "reference", 0)
    return leave(tmp_path / "reference", 1)


def test_equal_results_have_no_differences(reference: Path, tmp_path: Path) -> None:
    leave(tmp_path / "other", 0)
    assert differences(reference, leave(tmp_path / "other", 1), 2) == []
    assert steps_done(reference) == 2


def test_a_rank_that_left_nothing_is_a_difference(reference: Path, tmp_path: Path) -> None:
    other = leave(tmp_path / "other", 0)
    assert differences(reference, other, 2) == [f"rank 1: nothing in {other}"]
    assert differences(other, other, 2) == [f"rank 1: nothing in {other}"] * 2


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"losses": ["0x1.0p+0", "0x1.8000001p+0"]}, "1 losses differ, the first in step 2: 0x1.8000001p+0"),
        ({"losses": ["0x1.0p+0"]}, "1 losses and not 2"),
        ({"losses": []}, "0 losses and not 2"),
        ({"state": {**STATE, "rng_torch": "other"}}, "rng_torch differs"),
        ({"state": {k: v for k, v in STATE.items() if k != "scheduler"}}, "scheduler is missing"),
        ({"rank": 0}, "says that it is rank 0"),
    ],
)
def test_what_differs_is_said(reference: Path, tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    leave(tmp_path / "other", 0)
    assert differences(reference, leave(tmp_path / "other", 1, **changes), 2) == [f"rank 1: {told}"]


def test_two_results_without_data_are_not_equal(tmp_path: Path) -> None:
    empty = leave(tmp_path / "empty", 0, losses=[], state={})
    found = differences(empty, empty, 1)
    assert "rank 0: the reference has no losses" in found
    assert "rank 0: parameters is missing" in found
