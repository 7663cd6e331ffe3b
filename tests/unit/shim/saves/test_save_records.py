"""What a journal holds of a save that is under way."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from torchrelay.protocol.errors import JournalError, UnsupportedError
from torchrelay.shim.saves import save_records
from torchrelay.shim.script.save_future import SaveId

SAVE = SaveId("saving", 3)
OPTIONS = {"checkpoint_id": "folder", "planner": None}


def state() -> dict[str, Any]:
    large = torch.arange(9000.0)
    return {
        "model": {"weight": large, "tied": large, "bias": torch.ones(3)},
        "own": {"rng": torch.get_rng_state(), "step": 7, "losses": [0.5, 0.25]},
    }


def carried(given: dict[str, Any]) -> save_records.Restored:
    described = save_records.describe(SAVE, given, OPTIONS)
    found = save_records.restored(described.content)
    for path, tensor in described.tensors.items():
        found.tensors[path].copy_(tensor)
    return found


def test_another_process_saves_the_same() -> None:
    given = state()
    found = carried(given)
    assert found.is_whole()
    assert found.options == OPTIONS
    assert found.state["own"]["losses"] == [0.5, 0.25]
    for path in ("weight", "tied", "bias"):
        assert torch.equal(found.state["model"][path], given["model"][path])
    assert found.state["model"]["tied"] is found.state["model"]["weight"]
    assert torch.equal(found.state["own"]["rng"], given["own"]["rng"])


def test_only_large_tensors_come_from_elsewhere_and_ranks_agree_on_their_names() -> None:
    described = save_records.describe(SAVE, state(), OPTIONS)
    assert list(described.tensors) == ["save.saving.3.0"]
    assert len(described.content) < 12_000


def test_what_is_not_there_or_is_another_is_not_whole() -> None:
    described = save_records.describe(SAVE, state(), OPTIONS)
    found = save_records.restored(described.content)
    (tensor,) = found.tensors.values()
    tensor.copy_(torch.arange(9000.0))
    assert found.is_whole()
    tensor[8999] = -tensor[8999]
    assert not found.is_whole()


def test_what_cannot_be_written_down_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"cannot be written down: .*lock"):
        save_records.describe(SAVE, {"lock": threading.Lock()}, {})
    with pytest.raises(UnsupportedError, match="a Strange is saved"):
        save_records.describe(SAVE, {"x": torch.ones(9000).as_subclass(Strange)}, {})


class Strange(torch.Tensor):
    pass


def test_a_record_that_cannot_be_read_is_an_error_of_the_journal() -> None:
    for content in (b"", b"garbage", save_records.describe(SAVE, state(), OPTIONS).content[:-40]):
        with pytest.raises(JournalError, match="cannot be read here"):
            save_records.restored(content)


def test_the_size_of_a_state_is_that_of_its_tensors() -> None:
    assert save_records.size_bytes({"a": [torch.zeros(4), (torch.zeros(2, dtype=torch.int64), 5)], "b": "x"}) == 32
