"""Checkpoints on disk: which there are, of which step, and whether each is whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from torchrelay.agent.pod.checkpoints import checkpoint_files, find_checkpoints, step_of
from torchrelay.protocol.kube.checkpoint_owner import folder_prefix, job_id
from torchrelay.protocol.messages import CheckpointFile, FoundCheckpoint
from torchrelay.protocol.names import JIT_PREFIX, MANIFEST


def save(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"weight": torch.ones(64)}, path)
    return path


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-50])


JOB = job_id("team", "llama", "1")


def seen(folder: Path) -> dict[str, tuple[int, bool]]:
    """By path below the folder: its step, and whether it is whole."""
    found = find_checkpoints(folder, JOB)
    assert found.reason == ""
    return {str(Path(f.path).relative_to(folder)): (f.step, not f.broken) for f in found.found}


def test_files_of_their_own_and_one_that_is_cut_off(tmp_path: Path) -> None:
    save(tmp_path / "step-10.pt")
    cut(save(tmp_path / "step-20.pt"))
    save(tmp_path / "epoch=3-step=30.ckpt")
    assert seen(tmp_path) == {"step-10.pt": (10, True), "step-20.pt": (20, False), "epoch=3-step=30.ckpt": (30, True)}
    assert [f.step for f in find_checkpoints(tmp_path, JOB).found] == [30, 20, 10]


def test_folders_of_hugging_face_are_one_each_with_the_trainer_s_own_step(tmp_path: Path) -> None:
    for step in (500, 1000):
        save(tmp_path / f"checkpoint-{step}" / "optimizer.pt")
        save(tmp_path / f"checkpoint-{step}" / "pytorch_model.bin")
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps({"global_step": step + 1}))
    cut(tmp_path / "checkpoint-1000" / "optimizer.pt")
    assert seen(tmp_path) == {"checkpoint-500": (501, True), "checkpoint-1000": (1001, False)}


def test_a_distributed_checkpoint_without_its_metadata_is_not_whole(tmp_path: Path) -> None:
    shard = tmp_path / "step-7" / "__0_0.distcp"
    shard.parent.mkdir()
    shard.write_bytes(b"x" * 10)
    assert seen(tmp_path) == {"step-7": (7, False)}


def test_what_has_no_step_cannot_be_begun_from(tmp_path: Path) -> None:
    save(tmp_path / "last.pt")
    (found,) = find_checkpoints(tmp_path, JOB).found
    assert (found.step, "no number" in found.broken) == (-1, True)


def test_just_in_time_checkpoints_are_ours_and_their_tensors_nobody_s(tmp_path: Path) -> None:
    whole, begun = tmp_path / f"{folder_prefix(JOB)}a-step5", tmp_path / f"{folder_prefix(JOB)}b-step9"
    save(whole / "rank-0-tensors" / "x.pt")
    (whole / MANIFEST).write_text(json.dumps({"target": 5, "origin": {"job": JOB}}))
    begun.mkdir()
    assert find_checkpoints(tmp_path, JOB).found == (
        FoundCheckpoint(str(whole), 5, "", ours=True),
        FoundCheckpoint(str(begun), -1, "it was not finished", ours=True),
    )


@pytest.mark.parametrize("saver", [job_id("team", "llama", "2"), job_id("other", "llama", "1"), ""])
def test_what_another_job_has_saved_is_only_counted(tmp_path: Path, saver: str) -> None:
    """An earlier one of the same name, one of another namespace, and one that nobody knows."""
    saved = tmp_path / f"{JIT_PREFIX}llama-a-step90"
    saved.mkdir()
    (saved / MANIFEST).write_text(json.dumps({"target": 90, "origin": {"job": saver}}))
    save(tmp_path / "step-10.pt")
    found = find_checkpoints(tmp_path, JOB)
    assert ([f.step for f in found.found], found.of_others) == ([10], 1)


def test_what_another_namespace_s_job_has_begun_to_write_is_only_counted(tmp_path: Path) -> None:
    (tmp_path / f"{folder_prefix(job_id('other', 'llama', '1'))}llama-a-step90").mkdir()
    found = find_checkpoints(tmp_path, JOB)
    assert (found.found, found.of_others) == ((), 1)


def test_a_folder_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    parts = list(checkpoint_files(file))
    assert [p.last for p in parts] == [True]
    assert "cannot be read" in parts[0].reason


def test_files_come_by_name_and_the_last_part_says_so(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(b"{}")
    (tmp_path / ".x.1.partial").write_bytes(b"half")
    (tmp_path / "rank-0-tensors").mkdir()
    assert list(checkpoint_files(tmp_path)) == [
        CheckpointFile(str(tmp_path), MANIFEST, b"{}"),
        CheckpointFile(str(tmp_path), "", last=True),
    ]


@pytest.mark.parametrize(
    ("name", "step"),
    [("global_step00042", 42), ("iter_0000100", 100), ("model_17", 17), ("epoch=2-step=300", 300), ("best", -1)],
)
def test_a_checkpoints_step_is_read_from_its_name(tmp_path: Path, name: str, step: int) -> None:
    (tmp_path / name).mkdir()
    assert step_of(tmp_path / name) == step


@pytest.mark.parametrize("text", ["{}", "[" * 100_000])
def test_a_record_that_cannot_be_read_says_no_step(tmp_path: Path, text: str) -> None:
    (tmp_path / "trainer_state.json").write_text(text)
    assert step_of(tmp_path) == -1
