from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from torchrelay.protocol.errors import CheckpointError, StateMismatchError
from torchrelay.shim.replicas import tensor_files
from torchrelay.shim.replicas.tensor_files import LIST_NAME, load, save
from torchrelay.shim.tensors.digest import digests
from torchrelay.shim.transfer import layout, pace


def some_tensors() -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(3)
    return {
        "large": torch.rand(3 << 20, generator=chance),
        "bf16": torch.rand(100_000, generator=chance).to(torch.bfloat16),
        "transposed": torch.rand(400, 300, generator=chance).t(),
        "step": torch.tensor(17),
        "empty": torch.empty(0, 3),
        "mask": torch.rand(50, generator=chance) > 0.5,
    }


def blank(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {path: torch.zeros_like(tensor) for path, tensor in tensors.items()}


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tensor_files, "FILE_BYTES", 5 << 20)
    directory = tmp_path / "checkpoint" / "rank-0"
    save(directory, some_tensors())
    return directory


def test_what_was_saved_is_loaded_bitwise_from_several_files(saved: Path) -> None:
    tensors = some_tensors()
    destinations = blank(tensors)
    stats = load(saved, lambda infos: destinations)
    assert all(torch.equal(tensors[path], destinations[path]) for path in tensors)
    assert stats.digests() == digests(tensors)
    assert stats.tensors == len(tensors)
    assert stats.size_bytes == sum(t.numel() * t.element_size() for t in tensors.values())
    assert sorted(p.name for p in saved.iterdir()) == ["tensors-00000.bin", "tensors-00001.bin", "tensors.json"]


def test_only_this_user_can_read_it(saved: Path) -> None:
    assert saved.stat().st_mode & 0o777 == 0o700
    assert {p.name: oct(p.stat().st_mode & 0o777) for p in saved.iterdir()} == dict.fromkeys(
        ("tensors-00000.bin", "tensors-00001.bin", "tensors.json"), "0o600"
    )


def test_saving_again_replaces_what_was_there(saved: Path) -> None:
    tensors = {"other": torch.rand(10)}
    (saved / ".tensors-00000.bin.partial").write_bytes(b"left by a killed process")
    assert save(saved, tensors) == 40
    destinations = blank(tensors)
    load(saved, lambda infos: destinations)
    assert torch.equal(tensors["other"], destinations["other"])


def test_no_tensors_make_a_whole_checkpoint_too(tmp_path: Path) -> None:
    assert save(tmp_path, {}) == 0
    assert load(tmp_path, lambda infos: {}).tensors == 0


def test_every_flipped_bit_is_found(saved: Path) -> None:
    for path in sorted(saved.iterdir()):
        content = path.read_bytes()
        for at in range(5, len(content), len(content) // 7):
            damaged = bytearray(content)
            damaged[at] ^= 0x01
            path.write_bytes(damaged)
            with pytest.raises(CheckpointError, match=path.name):
                load(saved, lambda infos: blank(some_tensors()))
        path.write_bytes(content)
    load(saved, lambda infos: blank(some_tensors()))


@pytest.mark.parametrize("name", ["tensors.json", "tensors-00000.bin", "tensors-00001.bin"])
def test_missing_and_truncated_files_are_named(saved: Path, name: str) -> None:
    content = (saved / name).read_bytes()
    for size in (0, len(content) // 2, len(content) - 1):
        (saved / name).write_bytes(content[:size])
        with pytest.raises(CheckpointError, match=name):
            load(saved, lambda infos: blank(some_tensors()))
    (saved / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        load(saved, lambda infos: blank(some_tensors()))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"checksum": 3, "body": 4}', '"text"'])
def test_a_foreign_list_is_no_checkpoint(saved: Path, content: str) -> None:
    (saved / LIST_NAME).write_text(content)
    with pytest.raises(CheckpointError, match=r"tensors\.json cannot be read"):
        load(saved, lambda infos: {})


def test_a_list_with_a_right_checksum_and_wrong_content_is_refused(saved: Path) -> None:
    outer = json.loads((saved / LIST_NAME).read_text())
    content = json.loads(outer["body"])
    for key, value in (("manifest", "{}"), ("chunks", [["a", "b", "c"]]), ("chunks", []), ("digests", {})):
        body = json.dumps(content | {key: value})
        (saved / LIST_NAME).write_text(json.dumps({"checksum": tensor_files.checksum(body), "body": body}))
        with pytest.raises(CheckpointError):
            load(saved, lambda infos: blank(some_tensors()))


def test_another_version_is_said_to_be_one(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "CHUNK_BYTES", 1 << 20)
    with pytest.raises(CheckpointError, match="another version"):
        load(saved, lambda infos: blank(some_tensors()))


def test_a_destination_that_does_not_fit_is_named(saved: Path) -> None:
    with pytest.raises(StateMismatchError, match="bf16"):
        load(saved, lambda infos: blank(some_tensors()) | {"bf16": torch.zeros(100_000)})


def test_a_failed_save_leaves_nothing_that_looks_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, some_tensors())

    def full(descriptor: int, data: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensor_files.os, "write", full)
    with pytest.raises(CheckpointError, match="No space left"):
        save(tmp_path, some_tensors())
    assert not any(path.name.startswith(".") for path in tmp_path.iterdir())
    with pytest.raises(CheckpointError, match="no whole set"):
        load(tmp_path, lambda infos: blank(some_tensors()))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="cannot be written"):
        save(tmp_path / "file" / "below", {"a": torch.rand(3)})


def test_saving_and_loading_tell_how_far_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "EVERY_S", 0.0)
    told: list[tuple[int, int]] = []

    def moved(done_bytes: int, total_bytes: int) -> None:
        told.append((done_bytes, total_bytes))

    save(tmp_path, some_tensors(), moved=moved)
    saving, told[:] = list(told), []
    load(tmp_path, lambda infos: blank(some_tensors()), moved)
    assert saving == told
    done = [one for one, _ in told]
    assert len(done) > 3
    assert done == sorted(done)
    assert {total for _, total in told} == {done[-1]}
