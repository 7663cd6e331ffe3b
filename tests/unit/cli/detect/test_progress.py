"""How far `bench detect` is: told to whoever shows a bar."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from torchrelay.cli.detect.command import _is_played, _replaced


def test_each_episode_that_has_begun_counts_once_and_the_end_is_none() -> None:
    told: list[int] = []
    lines = [{"name": name} for name in ("xid 79", "xid 79", "link down")]
    assert not _is_played(lines, told.append)
    assert _is_played([*lines, {"name": "done"}], told.append)
    assert told == [2, 2]


def test_each_rank_that_was_replaced_counts() -> None:
    finished = [{"outcome": outcome} for outcome in ("committed", "abandoned", "committed")]
    job: Any = SimpleNamespace(named=lambda name: finished if name == "migration_finished" else [])
    told: list[int] = []
    assert _replaced(cast(Any, job), told.append) == 2
    assert told == [2]
