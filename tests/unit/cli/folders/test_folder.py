from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from torchrelay.cli.folders import folder
from torchrelay.cli.folders.journals import journal_folder
from torchrelay.protocol.errors import UserError


def entry(state: Path, run_id: str, process: folder.Process | None, name: str = "") -> Path:
    path = folder.make_run_folder(state, run_id)
    processes = () if process is None else (process,)
    command = ("run", "train.py")
    folder.write_run(path, folder.KnownRun(run_id, run_id, "127.0.0.1", 1234, command, processes, name=name))
    return path


def alive() -> folder.Process:
    process = folder.Process.find(os.getpid())
    assert process is not None
    return process


def dead() -> folder.Process:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = folder.Process.find(child.pid)
    assert process is not None
    child.communicate()
    return process


def test_the_state_folder_is_where_the_user_says(tmp_path: Path) -> None:
    assert folder.state_folder({"TORCHRELAY_STATE_DIR": str(tmp_path), "XDG_RUNTIME_DIR": "/run/user/1"}) == tmp_path
    assert folder.state_folder({"XDG_RUNTIME_DIR": "/run/user/1"}) == Path("/run/user/1/torchrelay")
    assert folder.state_folder({}) == Path(f"/tmp/torchrelay-{os.getuid()}")


def test_only_the_user_can_read_a_run_folder(tmp_path: Path) -> None:
    path = folder.make_run_folder(tmp_path / "state", "ab")
    secret = folder.write_secret(path, b"secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert folder.read_secret(path) == b"secret"


def test_a_state_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(UserError, match="TORCHRELAY_STATE_DIR"):
        folder.make_run_folder(tmp_path, "ab")


def test_a_state_folder_too_long_for_sockets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="shorter"):
        folder.make_run_folder(tmp_path / ("x" * 90), "ab")


def test_a_state_folder_that_cannot_be_made_is_refused() -> None:
    with pytest.raises(UserError, match="cannot be made"):
        folder.make_run_folder(Path("/dev/null/state"), "ab")


def test_a_running_job_is_found_again_as_it_was_written(tmp_path: Path) -> None:
    entry(tmp_path, "ab", alive())
    assert folder.choose_run(tmp_path, None) == folder.KnownRun(
        "ab", "ab", "127.0.0.1", 1234, ("run", "train.py"), (alive(),)
    )


def test_the_ways_that_a_job_has_taken_are_read_as_they_were_written(tmp_path: Path) -> None:
    taken = (folder.RungTaken("respawn", 2, 1, 3.5), folder.RungTaken("jit-checkpoint", 1, 0, 2.0))
    path = folder.make_run_folder(tmp_path, "ab")
    run = folder.KnownRun("ab", "ab", "127.0.0.1", 1, ("run",), (alive(),), ("1 (jit-checkpoint): killed",), taken)
    folder.write_run(path, run)
    assert folder.read_run(path) == run


def test_what_a_dead_run_left_behind_is_removed(tmp_path: Path) -> None:
    path = entry(tmp_path, "dead", dead())
    journals = journal_folder(path.name, path)
    journals.mkdir(mode=0o700)
    assert folder.running_jobs(tmp_path) == []
    assert not path.exists()
    assert not journals.exists()


def test_a_process_that_got_the_number_of_a_dead_one_is_another(tmp_path: Path) -> None:
    path = entry(tmp_path, "old", folder.Process(os.getpid(), alive().started_s - 100))
    assert folder.running_jobs(tmp_path) == []
    assert not path.exists()


def test_a_run_that_is_just_being_made_is_left_alone(tmp_path: Path) -> None:
    path = folder.make_run_folder(tmp_path, "new")
    assert folder.running_jobs(tmp_path) == []
    assert path.exists()


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    entry(tmp_path, "ab", alive())
    with pytest.raises(UserError, match="already"):
        folder.make_run_folder(tmp_path, "ab")


def test_without_a_job_it_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="hint: torchrelay run --help"):
        folder.choose_run(tmp_path / "none", None)


def test_a_job_is_found_by_its_name_unless_two_have_it(tmp_path: Path) -> None:
    entry(tmp_path, "ab", alive(), "pretrain")
    entry(tmp_path, "cd", alive(), "finetune")
    assert folder.choose_run(tmp_path, "finetune").run_id == "cd"
    entry(tmp_path, "ef", alive(), "finetune")
    with pytest.raises(
        UserError, match=r"its id:\n  cd finetune: torchrelay run train\.py\n  ef finetune: torchrelay run train\.py$"
    ):
        folder.choose_run(tmp_path, "finetune")


def test_among_several_jobs_one_has_to_be_named(tmp_path: Path) -> None:
    entry(tmp_path, "ab", alive())
    entry(tmp_path, "cd", alive())
    with pytest.raises(UserError, match="name one by its id"):
        folder.choose_run(tmp_path, None)
    assert folder.choose_run(tmp_path, "cd").run_id == "cd"
    with pytest.raises(UserError, match=r"has this id or name\. These run:\n  ab.*\n  cd"):
        folder.choose_run(tmp_path, "ef")


def test_two_machines_of_one_job_on_one_host_are_one_job(tmp_path: Path) -> None:
    for number in (0, 1):
        path = folder.make_run_folder(tmp_path, f"ab-n{number}")
        folder.write_run(path, folder.KnownRun("ab", path.name, "127.0.0.1", 1234, ("run", "train.py"), (alive(),)))
    assert [run.run_id for run in folder.one_of_each(tmp_path)] == ["ab"]
    assert folder.choose_run(tmp_path, None).run_id == "ab"
    entry(tmp_path, "cd", alive())
    with pytest.raises(
        UserError, match=r"name one by its id:\n  ab: torchrelay run train\.py\n  cd: torchrelay run train\.py"
    ):
        folder.choose_run(tmp_path, None)
