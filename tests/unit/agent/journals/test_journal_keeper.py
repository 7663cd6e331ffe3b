"""What the agent reads of its workers' shared memory."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest

from torchrelay.agent.journals.journal_keeper import JournalKeeper
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.journals.journal import JournalWriter
from torchrelay.protocol.machine.owned_folder import lock_folder, remove_left
from torchrelay.protocol.messages import JournalContent
from torchrelay.protocol.names import WorkerId

W0, W1 = WorkerId("n0.w0"), WorkerId("n0.w1")


def test_folders_are_private_and_go_at_the_end(tmp_path: Path) -> None:
    keeper = JournalKeeper(tmp_path / "shm")
    keeper.create(W0)
    for folder in (tmp_path / "shm", tmp_path / "shm" / W0):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    keeper.remove()
    assert list((tmp_path / "shm").iterdir()) == []


def test_what_a_dead_worker_alone_was_given_is_read_with_its_journals(tmp_path: Path) -> None:
    keeper = JournalKeeper(tmp_path / "shm")
    keeper.create(W0)
    writer = JournalWriter(tmp_path / "shm" / W0)
    writer.write_gate(6, b"gate")
    writer.gates_passed = 7
    writer.write_after(b"own")
    writer.close()
    assert keeper.content(W0) == JournalContent(W0, {}, {6: b"gate"}, b"", {6: b"own"})
    keeper.remove()


def test_journals_of_a_job_that_was_started_anew_are_not_taken_for_those_of_a_dead_one(tmp_path: Path) -> None:
    """Each of its agents has the folder that the command holds for all of them."""
    folder = tmp_path / "torchrelay-run"
    lock = lock_folder(folder)
    assert lock is not None
    for _ in range(2):
        keeper = JournalKeeper(folder)
        keeper.create(W0)
        remove_left(tmp_path, "torchrelay-")  # as another command of this user does
        assert (folder / W0).is_dir()
        keeper.remove()
    os.close(lock)


def test_what_another_node_keeps_beside_is_left_alone(tmp_path: Path) -> None:
    ours, theirs = JournalKeeper(tmp_path / "shm"), JournalKeeper(tmp_path / "shm")
    ours.create(W0)
    theirs.create(W1)
    ours.remove()
    assert [f.name for f in (tmp_path / "shm").iterdir()] == [W1]


@pytest.mark.parametrize("kind", ["open to others", "a link"])
def test_a_folder_that_others_could_read_is_refused(tmp_path: Path, kind: str) -> None:
    if kind == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        (tmp_path / "shm").symlink_to(tmp_path / "elsewhere")
    else:
        (tmp_path / "shm").mkdir()
        (tmp_path / "shm").chmod(0o755)
    with pytest.raises(UserError, match="closed to others"):
        JournalKeeper(tmp_path / "shm").create(W0)


def test_progress_of_a_worker_that_has_not_begun(tmp_path: Path) -> None:
    keeper = JournalKeeper(tmp_path / "shm")
    keeper.create(W0)
    assert keeper.progress(W0) is None
    assert keeper.content(W0) == JournalContent(W0)


def test_a_foreign_progress_file_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keeper = JournalKeeper(tmp_path / "shm")
    keeper.create(W0)
    (tmp_path / "shm" / W0 / "progress").write_bytes(b"x" * 4096)
    with caplog.at_level(logging.WARNING):
        assert [keeper.progress(W0) for _ in range(3)] == [None] * 3
    keeper.remove()
    assert len(caplog.records) == 1


def test_journals_outlive_their_writer(tmp_path: Path) -> None:
    keeper = JournalKeeper(tmp_path / "shm")
    keeper.create(W0)
    writer = JournalWriter(tmp_path / "shm" / W0)
    writer.write_boundary(8, b"eight")
    writer.close()
    assert keeper.content(W0) == JournalContent(W0, {8: b"eight"})
