from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torchrelay.protocol.errors import JournalError, StateMismatchError
from torchrelay.protocol.journals.kept import WHOLE
from torchrelay.shim.replicas.kept_tensors import DATA_NAME, KeptTensors, load, opened


def some_tensors(seed: int = 3) -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    return {
        "large": torch.rand(300_000, generator=chance),
        "bf16": torch.rand(1001, generator=chance).to(torch.bfloat16),
        "transposed": torch.rand(40, 30, generator=chance).t(),
        "step": torch.tensor(17.0),
        "empty": torch.empty(0, 3),
        "mask": torch.rand(50, generator=chance) > 0.5,
        "complex": torch.rand(7, generator=chance).to(torch.complex64),
    }


def blank(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {path: torch.zeros_like(tensor) for path, tensor in tensors.items()}


def kept_in(folder: Path, tensors: dict[str, torch.Tensor], boundary: int = 6) -> KeptTensors:
    kept = KeptTensors(folder)
    kept.fill(tensors)
    kept.seal(boundary)
    return kept


def test_what_was_kept_is_loaded_bitwise(tmp_path: Path) -> None:
    tensors = some_tensors()
    kept = kept_in(tmp_path, tensors)
    destinations = blank(tensors)
    stats = load(tmp_path, lambda infos: destinations)
    assert all(torch.equal(tensors[path], destinations[path]) for path in tensors)
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    assert (stats.tensors, stats.size_bytes, kept.size_bytes) == (len(tensors), size, size)


def test_a_slot_is_filled_again_in_the_same_memory_and_grows_where_tensors_have_come(tmp_path: Path) -> None:
    kept = kept_in(tmp_path, some_tensors())
    where = kept.views["large"].data_ptr()
    newer = some_tensors(4)
    kept.fill(newer)
    kept.seal(12)
    assert kept.views["large"].data_ptr() == where
    more = {**newer, "moments": torch.rand(700_000)}
    kept.fill(more)
    kept.seal(18)
    destinations = blank(more)
    load(tmp_path, lambda infos: destinations)
    assert all(torch.equal(more[path], destinations[path]) for path in more)


def test_training_that_goes_on_does_not_change_the_copy(tmp_path: Path) -> None:
    tensors = {"w": torch.ones(1000)}
    kept_in(tmp_path, tensors)
    tensors["w"].add_(1)
    destinations = blank(tensors)
    load(tmp_path, lambda infos: destinations)
    assert torch.equal(destinations["w"], torch.ones(1000))


def test_without_its_list_there_is_no_copy(tmp_path: Path) -> None:
    KeptTensors(tmp_path).fill(some_tensors())
    with pytest.raises(JournalError, match="no whole copy"):
        load(tmp_path, lambda infos: {})


def test_a_bit_that_has_changed_since_is_found(tmp_path: Path) -> None:
    kept_in(tmp_path, some_tensors())
    with open(tmp_path / DATA_NAME, "r+b") as f:
        f.seek(1000)
        byte = f.read(1)[0]
        f.seek(1000)
        f.write(bytes([byte ^ 1]))
    with pytest.raises(JournalError, match="the content of large is not what was copied"):
        load(tmp_path, lambda infos: blank(some_tensors()))


def test_a_copy_is_of_use_before_its_digests_are_taken(tmp_path: Path) -> None:
    tensors, destinations = some_tensors(), blank(some_tensors())
    kept = KeptTensors(tmp_path)
    kept.fill(tensors)
    kept.mark(6)
    assert opened(tmp_path)[1:] == (None, 6)
    load(tmp_path, lambda infos: destinations)
    assert all(torch.equal(destinations[path], tensor) for path, tensor in tensors.items())
    kept.seal(6)
    assert (opened(tmp_path)[1] or {}).keys() == tensors.keys()


def test_a_list_that_is_damaged_is_refused(tmp_path: Path) -> None:
    kept_in(tmp_path, some_tensors())
    text = (tmp_path / WHOLE).read_text()
    (tmp_path / WHOLE).write_text(text.replace("large", "Large"))
    with pytest.raises(JournalError, match="damaged"):
        opened(tmp_path)


def test_a_destination_of_another_form_is_refused(tmp_path: Path) -> None:
    kept_in(tmp_path, {"w": torch.rand(4, 3)})
    with pytest.raises(StateMismatchError, match="w: the copy has"):
        load(tmp_path, lambda infos: {"w": torch.zeros(3, 4)})
