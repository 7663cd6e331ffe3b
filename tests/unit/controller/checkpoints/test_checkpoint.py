from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from torchrelay.controller.checkpoints.checkpoint import (
    MANIFEST,
    CheckpointOrigin,
    JobCheckpoint,
    RankPart,
    read_checkpoint,
    stranger,
    write_checkpoint,
)
from torchrelay.protocol.errors import CheckpointError

CHECKPOINT = JobCheckpoint(
    "run",
    2,
    7,
    {0: RankPart(0, "enter", b"j0", set_up=b"s0", ddp_layout="1 0"), 1: RankPart(1, "shadow", b"j1", b"g1", b"s1")},
    b"log",
    {0: 4096},
    {0: 0, 1: 0},
    left="train.py:3#1",
    origin=CheckpointOrigin(("train.py", "--lr", "1"), "ab", "team/llama/1"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "jit", CHECKPOINT)
    return tmp_path / "jit"


def test_what_was_written_is_read_back(folder: Path) -> None:
    assert read_checkpoint(folder, 2) == CHECKPOINT
    assert not list(folder.glob("*.partial"))


def test_one_that_says_nothing_of_a_loop_that_was_left_is_read_too(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    del manifest["left"]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert read_checkpoint(folder, 2).left == ""


def test_the_manifest_gets_its_name_when_all_that_it_lists_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        fsync(descriptor)

    def renamed(path: Path, target: Path) -> Path:
        done.append(f"name {target.name}")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    write_checkpoint(tmp_path / "jit", CHECKPOINT)
    files = [step.removeprefix("name ") for step in done if step.startswith("name ")]
    assert all(done.index(f"sync {name}.partial") < done.index(f"name {name}") for name in files)
    at = done.index(f"name {MANIFEST}")
    assert files[-1] == MANIFEST
    assert "sync jit" in done[done.index(f"name {files[-2]}") : at]
    assert done[at + 1 :] == ["sync jit", f"sync {tmp_path.name}"]


def test_only_this_user_can_read_it(folder: Path) -> None:
    assert folder.stat().st_mode & 0o077 == 0
    assert [p.name for p in folder.iterdir() if p.stat().st_mode & 0o077] == []


def edit(folder: Path, **changes: object) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, **changes}))


def point_outside(folder: Path) -> None:
    ranks = json.loads((folder / MANIFEST).read_text())["ranks"]
    ranks[0]["journal"]["file"] = "../secret"
    edit(folder, ranks=ranks)


@pytest.mark.parametrize(
    ("damage", "advice"),
    [
        (lambda f: (f / MANIFEST).unlink(), "give the folder that was named when the job ended"),
        (lambda f: (f / MANIFEST).write_text("{"), "start from an older checkpoint"),
        (lambda f: (f / MANIFEST).write_text("[]"), "use the version that wrote it"),
        (lambda f: edit(f, version=99), "its format is 99, this torchrelay reads 3; use the version that wrote it"),
        (lambda f: edit(f, world_size=3), "resume with as many nodes and processes per node as before"),
        (lambda f: edit(f, ranks=[]), "ranks are missing"),
        (lambda f: edit(f, tensors=None), "is not as torchrelay writes it"),
        (lambda f: (f / "rank-1.journal").write_bytes(b"jX"), "rank-1.journal is damaged"),
        (lambda f: (f / "rank-1.gate-journal").unlink(), "rank-1.gate-journal cannot be read"),
        (lambda f: (f / "collective-log").write_bytes(b""), "collective-log is damaged"),
        (point_outside, "points out of the folder"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused_with_advice(
    folder: Path, damage: Callable[[Path], object], advice: str
) -> None:
    damage(folder)
    with pytest.raises(CheckpointError, match="--resume") as caught:
        read_checkpoint(folder, 2)
    assert advice in str(caught.value)


def test_there_is_no_checkpoint_before_everything_is_written(tmp_path: Path) -> None:
    (tmp_path / "rank-1.journal").mkdir()
    with pytest.raises(OSError, match="rank-1"):
        write_checkpoint(tmp_path, CHECKPOINT)
    assert not (tmp_path / MANIFEST).exists()


def test_a_checkpoint_of_another_script_is_refused_and_a_changed_one_is_told(tmp_path: Path) -> None:
    saved = CheckpointOrigin(("a/train.py", "--lr", "1"), "aa")
    assert stranger("x", saved, CheckpointOrigin(("b/train.py", "--lr", "1"), "aa")) == ""
    assert stranger("x", CheckpointOrigin(), CheckpointOrigin(("other.py",))) == ""
    assert "has changed since" in stranger("x", saved, CheckpointOrigin(("train.py", "--lr", "1"), "bb"))
    assert "its arguments were --lr 1, now they are none" in stranger("x", saved, CheckpointOrigin(("train.py",), "aa"))
    with pytest.raises(CheckpointError, match=r"saved by train\.py, this job runs other\.py"):
        stranger("x", saved, CheckpointOrigin(("other.py", "--lr", "1"), "aa"))
    with pytest.raises(CheckpointError, match=r"saved by -m pack\.a, this job runs -m pack\.b"):
        stranger("x", CheckpointOrigin(("-m", "pack.a")), CheckpointOrigin(("-m", "pack.b")))
