"""Checkpoints as torch itself writes them, whole and not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from torchrelay.agent.health.job_files.checkpoints import what_is_broken

STATE = {"weight": torch.arange(2000.0), "step": 7, "nested": {"bias": torch.zeros(3, dtype=torch.int64)}}


def cut(path: Path, bytes_: int = 10) -> None:
    os.truncate(path, path.stat().st_size - bytes_)


def safetensors(path: Path, names: tuple[str, ...] = ("a", "b")) -> None:
    header = {n: {"dtype": "U8", "shape": [4], "data_offsets": [4 * i, 4 * i + 4]} for i, n in enumerate(names)}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"0123" * len(names))


def test_a_folder_without_checkpoints_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("hello")
    assert what_is_broken(tmp_path) == []


def test_a_torch_file_is_whole_with_its_end(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "model.pt")
    assert what_is_broken(tmp_path) == []
    cut(tmp_path / "model.pt")
    assert what_is_broken(tmp_path) == [f"{tmp_path}/model.pt: its end is missing"]
    (tmp_path / "model.pt").write_bytes(b"")
    assert what_is_broken(tmp_path) == [f"{tmp_path}/model.pt: is empty"]


def test_a_safetensors_file_has_the_length_that_its_header_says(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    safetensors(path)
    assert what_is_broken(tmp_path) == []
    whole = path.stat().st_size
    cut(path, 3)
    assert what_is_broken(tmp_path) == [f"{path}: has {whole - 3} bytes and not {whole}"]
    path.write_bytes(b"\xff" * 20)
    assert what_is_broken(tmp_path) == [f"{path}: its end is missing"]


def test_json_that_is_nested_without_end_is_broken_like_any_other(tmp_path: Path) -> None:
    deep = b"[" * 100_000
    (tmp_path / "model.safetensors").write_bytes(len(deep).to_bytes(8, "little") + deep)
    (tmp_path / "model.safetensors.index.json").write_bytes(deep)
    assert what_is_broken(tmp_path) == [
        f"{tmp_path}/model.safetensors: its header cannot be read",
        f"{tmp_path}/model.safetensors.index.json: cannot be read",
    ]


def test_all_files_of_an_index_have_to_be_there(tmp_path: Path) -> None:
    weights = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    safetensors(tmp_path / "model-1.safetensors")
    assert what_is_broken(tmp_path) == [f"{tmp_path}/model.safetensors.index.json: model-2.safetensors is missing"]
    safetensors(tmp_path / "model-2.safetensors")
    assert what_is_broken(tmp_path) == []


@pytest.fixture
def distributed(tmp_path: Path) -> Path:
    folder = tmp_path / "step-7"
    with pytest.warns(UserWarning, match="single process"):
        dcp.save(STATE, checkpoint_id=folder, no_dist=True)
    assert (folder / ".metadata").exists()
    return folder


def test_a_distributed_checkpoint_is_whole_as_torch_writes_it(distributed: Path) -> None:
    assert what_is_broken(distributed.parent) == []


def test_a_distributed_checkpoint_without_its_metadata_was_not_finished(distributed: Path) -> None:
    (distributed / ".metadata").unlink()
    (broken,) = what_is_broken(distributed.parent)
    assert ".metadata: is missing" in broken


def test_a_distributed_checkpoint_with_a_short_or_missing_file_is_broken(distributed: Path) -> None:
    (file,) = distributed.glob("*.distcp")
    (distributed / "other.distcp").write_bytes(b"")
    os.truncate(file, 4000)
    (broken,) = what_is_broken(distributed.parent)
    assert f"{file.name}: has 4000 bytes and not" in broken
    file.unlink()
    assert what_is_broken(distributed.parent) == [f"{distributed}/{file.name}: is missing"]


def test_metadata_that_would_run_code_runs_none(distributed: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    (distributed / ".metadata").write_bytes(b"cos\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR.")
    assert what_is_broken(distributed.parent) == []
    assert not mark.exists()


def test_the_newest_checkpoint_is_the_one_that_counts(tmp_path: Path) -> None:
    for name, time_s in (("old", 1_000), ("new", 2_000)):
        (tmp_path / name).mkdir()
        torch.save(STATE, tmp_path / name / "model.pt")
        os.utime(tmp_path / name / "model.pt", (time_s, time_s))
    cut(tmp_path / "old" / "model.pt")
    os.utime(tmp_path / "old" / "model.pt", (1_000, 1_000))
    assert what_is_broken(tmp_path) == []
    os.utime(tmp_path / "old" / "model.pt", (3_000, 3_000))
    assert len(what_is_broken(tmp_path)) == 1
