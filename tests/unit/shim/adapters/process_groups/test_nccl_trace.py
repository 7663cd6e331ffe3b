from __future__ import annotations

import pickle

import pytest

from torchrelay.shim.adapters.process_groups import nccl_trace


def recorded(state: str) -> bytes:
    entry = {"profiling_name": "nccl:all_reduce", "process_group": ("0", ""), "collective_seq_id": 7, "state": state}
    return pickle.dumps({"entries": [entry]})


@pytest.mark.parametrize(
    ("state", "timing", "waits"),
    [("started", "1", True), ("scheduled", "1", False), ("scheduled", "0", True), ("completed", "0", False)],
)
def test_a_collective_waits_for_others_once_it_has_begun(
    state: str, timing: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_NCCL_ENABLE_TIMING", timing)
    monkeypatch.setattr(nccl_trace, "_dump", lambda **options: recorded(state))
    found = nccl_trace.waiting_collectives()
    assert found == ([("nccl:all_reduce", "0", 7)] if waits else [])


def test_a_torch_that_records_nothing_knows_of_none_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_trace, "_dump", None)
    assert nccl_trace.waiting_collectives() == []
