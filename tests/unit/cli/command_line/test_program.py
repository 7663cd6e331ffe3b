"""What a machine says of the program that it was told to run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from torchrelay.cli.command_line import program
from torchrelay.cli.command_line.checked import check
from torchrelay.cli.command_line.given import GivenOptions
from torchrelay.cli.command_line.options import RunOptions
from torchrelay.cli.machine import LocalMachine


def options(script: Path, **changes: object) -> RunOptions:
    return check(GivenOptions(str(script), **changes), LocalMachine(), {})  # type: ignore[arg-type]  # of any of its fields


def test_a_script_is_known_by_where_it_is_and_what_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("pass")
    monkeypatch.chdir(tmp_path)
    here = options(Path("train.py"))
    assert program.script_path(here) == str(tmp_path / "train.py")
    first = program.script_digest(here)
    (tmp_path / "train.py").write_text("pass  # changed")
    assert program.script_digest(here) != first
    module = options(Path("package.train"), module=True)
    assert (program.script_path(module), program.script_digest(module)) == ("-m package.train", "")


def test_sources_are_those_that_the_script_may_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("train.py", "lib/model.py", ".git/hook.py", "venv/pyvenv.cfg", "venv/six.py", "a/b/c/d/e/deep.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    found = program.sources(options(tmp_path / "train.py"))
    assert (set(found.digests), found.is_cut) == ({"train.py", "lib/model.py"}, False)
    assert len(set(found.digests.values())) == 2


def test_of_a_folder_with_too_many_sources_only_what_the_script_imports_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("import model")
    for name in ("model", "notes", "plots"):
        (tmp_path / f"{name}.py").touch()
    whole = program.sources(options(tmp_path / "train.py"))
    assert (len(whole.digests), whole.imported, whole.is_cut) == (4, ("model.py", "train.py"), False)
    monkeypatch.setattr(program, "MOST_SOURCES", 3)
    cut = program.sources(options(tmp_path / "train.py"))
    assert (set(cut.digests), cut.imported, cut.is_cut) == ({"model.py", "train.py"}, ("model.py", "train.py"), True)


def test_what_a_module_imports_is_looked_for_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text("from . import model")
    (tmp_path / "package" / "model.py").touch()
    monkeypatch.chdir(tmp_path)
    found = program.sources(options(Path("package.train"), module=True))
    assert found.imported == ("package/model.py", "package/train.py")


def test_only_faults_that_strike_the_controller_are_one_machines_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    inject = ("kill:rank=0,step=3", "controller:rank=0,step=4")
    assert program.faults_of_all(options(tmp_path / "train.py", inject=inject)) == ["kill:rank=0,step=3,phase=forward"]


def test_faults_that_have_struck_before_a_restart_are_still_among_those_of_all(tmp_path: Path) -> None:
    """A machine that comes back is given its whole command again, and must not be refused for it."""
    (tmp_path / "train.py").touch()
    first = options(tmp_path / "train.py", inject=("kill:rank=0,step=3",))
    assert program.faults_of_all(replace(first, faults=())) == program.faults_of_all(first)


def test_the_command_is_one_that_the_users_shell_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program.own_command()[1:] == ["-m", "torchrelay.cli"]
    (tmp_path / "torchrelay").touch(mode=0o755)
    assert program.own_command() == ["torchrelay"]
