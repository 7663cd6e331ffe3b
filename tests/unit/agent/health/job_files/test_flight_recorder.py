from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from torchrelay.agent.health.job_files.flight_recorder import Dumps, read_dump, who_is_behind


def dump(last: int, group: tuple[str, str] = ("0", "default_pg"), name: str = "gloo:all_reduce") -> dict[str, Any]:
    return {
        "entries": [
            {"process_group": group, "collective_seq_id": i, "profiling_name": name} for i in range(1, last + 1)
        ]
    }


def test_the_rank_that_did_not_begin_the_last_collective_is_behind() -> None:
    behind = who_is_behind({0: dump(12), 1: dump(9), 2: dump(12)})
    assert behind is not None
    assert behind.rank == 1
    assert "rank 1 last began collective 9" in behind.reason
    assert "others 12" in behind.reason


def test_level_ranks_and_a_single_dump_accuse_nobody() -> None:
    assert who_is_behind({0: dump(12), 1: dump(12)}) is None
    assert who_is_behind({0: dump(12)}) is None
    assert who_is_behind({}) is None


def test_groups_count_on_their_own() -> None:
    both = {"entries": dump(40)["entries"] + dump(3, ("1", "dp"))["entries"]}
    late = {"entries": dump(40)["entries"] + dump(1, ("1", "dp"))["entries"]}
    behind = who_is_behind({0: both, 1: late})
    assert behind is not None
    assert behind.rank == 1


def test_files_are_known_by_their_name_and_read_as_they_come(tmp_path: Path) -> None:
    dumps = Dumps()
    for rank, last in ((0, 5), (1, 4)):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump(last)))
    (tmp_path / "model.pt").write_bytes(pickle.dumps(dump(1)))
    assert dumps.take(tmp_path / "model.pt") is None
    assert dumps.take(tmp_path / "nccl_trace_rank_0") is None
    behind = dumps.take(tmp_path / "nccl_trace_rank_1")
    assert behind is not None
    assert behind.rank == 1


class Harmful:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("harm",)


def test_a_file_that_would_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"entries": [Harmful()]}))
    with pytest.raises(pickle.UnpicklingError, match="plain values only"):
        read_dump(path)
    assert Dumps().take(path) is None
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("content", [b"", b"not a pickle", pickle.dumps([1]), pickle.dumps({"entries": 3})])
def test_other_files_are_no_dumps(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(content)
    assert Dumps().take(path) is None
