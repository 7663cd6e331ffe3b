from __future__ import annotations

import os
import secrets
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from torchrelay.cli.folders.journals import (
    empty_journals,
    journal_folder,
    own_journals,
    remove_journals,
    remove_what_is_left,
)
from torchrelay.protocol.errors import UserError

HOLDS = """
import sys
from pathlib import Path
from torchrelay.cli.folders.journals import own_journals
with own_journals(sys.argv[1], Path()):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def name() -> str:
    return secrets.token_hex(4)


def test_journals_lie_in_a_folder_of_the_user_s_alone_until_the_end(name: str, tmp_path: Path) -> None:
    folder = journal_folder(name, tmp_path)
    with own_journals(name, tmp_path):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not folder.exists()


def test_a_run_that_the_kernel_has_ended_leaves_nothing_to_the_next_of_its_name(name: str, tmp_path: Path) -> None:
    folder = journal_folder(name, tmp_path)
    (folder / "n1.w0").mkdir(parents=True, mode=0o700)
    (folder / "n1.w0" / "boundary-0").write_bytes(b"of another run")
    with own_journals(name, tmp_path):
        assert list(folder.iterdir()) == []


def test_what_an_agent_that_was_killed_has_left_is_gone_before_the_next_one_of_the_run_begins(
    name: str, tmp_path: Path
) -> None:
    folder = journal_folder(name, tmp_path)
    with own_journals(name, tmp_path):
        (folder / "kept-n0").mkdir()
        (folder / "n0.w1").mkdir()
        (folder / "n0.w1" / "boundary-0").write_bytes(b"of the processes before")
        empty_journals(name, tmp_path)
        assert list(folder.iterdir()) == []
        with pytest.raises(UserError), own_journals(name, tmp_path):
            pass  # it is this run's all the same


def test_a_second_run_of_the_same_name_is_refused_whatever_its_state_folder_and_harms_nothing(
    name: str, tmp_path: Path
) -> None:
    folder = journal_folder(name, tmp_path)
    with own_journals(name, tmp_path / "one"):
        (folder / "n1.w0").mkdir()
        with pytest.raises(UserError, match="secret of its own"), own_journals(name, tmp_path / "two"):
            pass
        remove_journals(name, tmp_path / "two")
        assert (folder / "n1.w0").exists()


def test_who_is_killed_holds_its_journals_no_longer(name: str, tmp_path: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLDS, name], **pipes, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="already"), own_journals(name, tmp_path):
            pass
        first.kill()
    remove_journals(name, tmp_path)
    assert not journal_folder(name, tmp_path).exists()


def test_a_later_command_removes_them_whatever_state_folder_the_killed_one_had(name: str, tmp_path: Path) -> None:
    folder = journal_folder(name, tmp_path)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLDS, name], **pipes, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        (folder / "n1.w0").mkdir()
        remove_what_is_left()
        assert (folder / "n1.w0").exists()
        first.kill()
    remove_what_is_left()
    assert not folder.exists()


def test_a_link_in_its_place_is_refused(name: str, tmp_path: Path) -> None:
    folder = journal_folder(name, tmp_path)
    folder.symlink_to(tmp_path)
    try:
        with pytest.raises(UserError, match="cannot be made"), own_journals(name, tmp_path):
            pass
    finally:
        os.unlink(folder)


TAKES_OVER = """
import os, sys
from torchrelay.shim.set_up.scratch_files import JoinerFiles
files = JoinerFiles()
files.start()
child = os.fork()
if child == 0:
    sys.stdin.read()
    os._exit(0)
with open(sys.argv[1], "w") as log:
    log.write("of the joiner")
    log.flush()
    print("started", flush=True)
    sys.stdin.read()
"""


def test_what_a_rank_that_was_taking_over_has_left_goes_once_it_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has its number by then, and whatever its children do."""
    temporary, log = tmp_path / "tmp", tmp_path / "log"
    temporary.mkdir()
    log.write_text("of the lost rank")
    others = temporary / f"torchrelay-{os.getpid()}-results"
    for folder in (others, temporary / "torchrelay-7-0123456789abcdef"):
        folder.mkdir()
        (folder / "file").write_text("the user's own")
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", TAKES_OVER, str(log)], **pipes, text=True) as joiner:
        assert joiner.stdout is not None
        assert joiner.stdout.readline() == "started\n"
        (left,) = temporary.glob(f"torchrelay-{joiner.pid}-*")
        remove_what_is_left()
        assert [path.read_text() for path in left.iterdir()] == ["of the joiner"]
        joiner.kill()
        joiner.wait()
        reused = left.rename(temporary / f"torchrelay-{os.getpid()}-{left.name[-12:]}")
        remove_what_is_left()
        assert not reused.exists()
    assert len(list(temporary.iterdir())) == 2
    assert log.read_text() == "of the lost rank"
