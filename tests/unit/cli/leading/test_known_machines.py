from __future__ import annotations

from pathlib import Path

from torchrelay.cli.leading.known_machines import KnownMachines, mark, read_machines, remove_machines, write_machines
from torchrelay.protocol.names import claim_file

KNOWN = KnownMachines("job", "n0", ("node0:1", "node1:1"))


def test_what_a_machine_has_written_down_is_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "jit"
    assert read_machines(folder, "run") is None
    write_machines(folder, "run", KNOWN)
    assert read_machines(folder, "run") == KNOWN
    assert read_machines(folder, "another") is None
    (folder / "run-machines.json").write_text("torn")
    assert read_machines(folder, "run") is None


def test_whoever_comes_first_marks_a_folder_for_all_of_the_run(tmp_path: Path) -> None:
    first = mark(tmp_path / "jit", "run")
    assert first
    assert mark(tmp_path / "jit", "run") == first
    assert mark(tmp_path / "jit", "another") != first
    assert mark(tmp_path / "elsewhere", "run") != first
    assert sorted(path.name for path in (tmp_path / "jit").iterdir()) == ["another-folder", "run-folder"]
    (tmp_path / "file").touch()
    assert mark(tmp_path / "file", "run") == ""


def test_nothing_is_left_of_a_job_that_is_over_and_all_of_another_one(tmp_path: Path) -> None:
    folder = tmp_path / "jit"
    write_machines(folder, "run", KNOWN)
    write_machines(folder, "other", KnownMachines("else", "n0", ()))
    (folder / claim_file("run", "job", 2)).write_text("3")
    mark(folder, "run")
    remove_machines(folder, "run", ["job"])
    assert [path.name for path in folder.iterdir()] == ["other-machines.json"]
    remove_machines(folder, "other", ["else"])
    assert not folder.exists()
