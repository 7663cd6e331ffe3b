"""Files that a rank writes, or renames, by order."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from torchrelay.protocol.errors import CheckpointError
from torchrelay.protocol.kube.checkpoint_owner import folder_prefix, job_id
from torchrelay.protocol.messages import ClearCheckpoints
from torchrelay.shim.replicas.kept_files import BROKEN, clear, keep, set_aside


def test_a_file_has_its_name_once_it_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "jit"
    keep(folder, "journal", b"one ", False)
    assert not (folder / "journal").exists()
    keep(folder, "journal", b"two", True)
    assert (folder / "journal").read_bytes() == b"one two"
    assert os.listdir(folder) == ["journal"]


def test_a_name_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="points out of"):
        keep(tmp_path, "../journal", b"", True)


def test_what_is_set_aside_can_be_found_and_what_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "step-30.pt").write_bytes(b"x")
    (tmp_path / "step-40").mkdir()
    (tmp_path / "file").write_bytes(b"")
    reason = set_aside([str(tmp_path / "step-30.pt"), f"{tmp_path}/step-40/", f"{tmp_path}/gone", f"{tmp_path}/file/x"])
    assert sorted(os.listdir(tmp_path)) == ["file", f"step-30.pt{BROKEN}", f"step-40{BROKEN}"]
    assert "file/x: Not a directory" in reason
    assert "gone" not in reason


JOB, EARLIER, ELSEWHERE = job_id("team", "llama", "2"), job_id("team", "llama", "1"), job_id("other", "llama", "9")
OURS, THEIRS = folder_prefix(JOB), folder_prefix(ELSEWHERE)
RUN = "llama-5"


def cleared(folder: Path, keep: int) -> str:
    return clear(ClearCheckpoints(str(folder), "llama", keep, JOB, RUN))


def jit(folder: Path, name: str, written_s: int | None, saver: str = JOB) -> Path:
    path = folder / name
    (path / "rank-0-tensors").mkdir(parents=True)
    (path / "rank-0-tensors" / "x.pt").write_bytes(b"x")
    if written_s is not None:
        (path / "manifest.json").write_text(json.dumps({"origin": {"job": saver}}))
        os.utime(path / "manifest.json", (written_s, written_s))
    return path


@pytest.mark.parametrize(("count", "left"), [(1, {"b-step7"}), (2, {"a-step30", "b-step7"}), (0, set())])
def test_the_newest_whole_ones_of_the_job_stay(tmp_path: Path, count: int, left: set[str]) -> None:
    """By when they were written: a job that has begun again from an earlier step is younger at a lower one."""
    jit(tmp_path, f"{OURS}llama-a-step30", 100)
    jit(tmp_path, f"{OURS}llama-b-step7", 200)
    jit(tmp_path, f"{OURS}llama-0-step9", 50)
    jit(tmp_path, f"{OURS}llama-c-step40", None)
    others = [f"{OURS}llama-2-a-step30", f"{OURS}llama-a-step30.torchrelay-aside", "step-30", "llama"]
    for other in others:
        jit(tmp_path, other, 1)
    assert cleared(tmp_path, count) == ""
    assert {p.name for p in tmp_path.iterdir()} - set(others) == {f"{OURS}llama-{name}" for name in left}
    assert {p.name for p in tmp_path.iterdir()} >= set(others)


def test_an_earlier_job_s_goes_and_one_of_another_namespace_stays(tmp_path: Path) -> None:
    """The earlier job's is the newest, and counts for nothing."""
    own, before = (
        jit(tmp_path, f"{OURS}llama-a-step3", 100),
        jit(tmp_path, f"{OURS}llama-b-step90", 200, EARLIER),
    )
    elsewhere = jit(tmp_path, f"{THEIRS}llama-c-step50", 300, ELSEWHERE)
    assert cleared(tmp_path, 1) == ""
    assert (own.exists(), before.exists(), elsewhere.exists()) == (True, False, True)
    assert cleared(tmp_path, 0) == ""
    assert {*tmp_path.iterdir()} == {elsewhere}


@pytest.mark.parametrize("keep", [0, 1])
def test_what_a_job_of_another_namespace_has_begun_to_write_stays(tmp_path: Path, keep: int) -> None:
    """It has the same name and the same folder, and its manifest comes last."""
    writing, ours = jit(tmp_path, f"{THEIRS}llama-c-step50", None), jit(tmp_path, f"{OURS}llama-b-step50", None)
    cut_off = jit(tmp_path, f"{THEIRS}llama-d-step60", None)
    (cut_off / "manifest.json").write_text('{"origin": {"jo')
    deep = jit(tmp_path, "torchrelay-jit-llama-f-step80", None)
    (deep / "manifest.json").write_text("[" * 100_000)
    nobody_knows = jit(tmp_path, "torchrelay-jit-llama-e-step70", None)
    assert cleared(tmp_path, keep) == ""
    assert not ours.exists()
    assert {*tmp_path.iterdir()} == {writing, cut_off, deep, nobody_knows}


def test_what_this_run_has_begun_stays_until_nothing_may_be_left(tmp_path: Path) -> None:
    """Ranks write it while one of them clears beside its training."""
    writing, before = jit(tmp_path, f"{OURS}{RUN}-step9", None), jit(tmp_path, f"{OURS}llama-4-step9", None)
    assert cleared(tmp_path, 1) == ""
    assert (writing.exists(), before.exists()) == (True, False)
    assert cleared(tmp_path, 0) == ""
    assert not writing.exists()


def test_one_of_a_version_that_marked_no_folders_goes_if_its_manifest_says_whose_it_is(tmp_path: Path) -> None:
    before, elsewhere = (
        jit(tmp_path, "torchrelay-jit-llama-a-step3", 100, EARLIER),
        jit(tmp_path, "torchrelay-jit-llama-b-step3", 100, ELSEWHERE),
    )
    assert cleared(tmp_path, 1) == ""
    assert (before.exists(), elsewhere.exists()) == (False, True)


def test_what_cannot_be_removed_is_named_and_no_whole_one_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = jit(tmp_path, f"{OURS}llama-a-step1", 1)

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("shutil.rmtree", refuse)
    assert cleared(tmp_path, 0) == f"{old}: Permission denied"
    assert not (old / "manifest.json").exists()
    assert cleared(tmp_path / "nothing", 1) == f"{tmp_path / 'nothing'}: No such file or directory"
