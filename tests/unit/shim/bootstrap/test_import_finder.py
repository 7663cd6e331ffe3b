from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from torchrelay.shim.bootstrap import import_finder, run_file
from torchrelay.shim.bootstrap.import_finder import InstrumentedLoader, ScriptFinder
from torchrelay.shim.script import sites

LOOPS = """
class Loop:
    def run(self):
        for item in self.items(): item.step()
    def other(self):
        for i in f(): g(i)
"""


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_finder, "default_folder", lambda: None)
    for name in ("PACKAGES", "INSTRUMENTED_FILES"):
        monkeypatch.setattr(sites, name, set())
    for name in ("LEFT_ALONE", "TEXTS", "LOADED_FROM"):
        monkeypatch.setattr(sites, name, {})


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed framework. The loops are in one file, the optimizer's step in another."""
    folder = tmp_path / "site-packages" / "some_framework"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "loops.py").write_text(LOOPS)
    (folder / "steps.py").write_text("def advance(optimizer): optimizer.step()")
    (folder / "other.py").write_text("for i in f(): g(i)")
    monkeypatch.syspath_prepend(str(folder.parent))
    yield folder
    for name in [n for n in sys.modules if n.startswith("some_framework")]:
        del sys.modules[name]


def loader_of(name: str, folder: Path) -> Any:
    runtime: Any = None
    spec = ScriptFinder(runtime, lambda: None, {}).find_spec(name, [str(folder)])
    assert spec is not None
    return spec.loader


def test_loops_that_may_train_are_rewritten_in_an_installed_package_that_steps_an_optimizer(package: Path) -> None:
    loader = loader_of("some_framework.loops", package)
    assert type(loader) is InstrumentedLoader
    assert {str(package / "loops.py")} == sites.PACKAGES == sites.INSTRUMENTED_FILES
    assert sites.TEXTS == {}, "a package has a version of its own"
    assert [site.function for site in loader._made.sites] == ["Loop.run"]


def test_frames_of_a_package_that_steps_are_state_where_it_has_no_loop(package: Path) -> None:
    assert type(loader_of("some_framework.steps", package)) is SourceFileLoader
    assert {str(package / "steps.py")} == sites.PACKAGES == sites.INSTRUMENTED_FILES


def test_the_rest_of_an_installed_package_is_left_alone(package: Path) -> None:
    assert type(loader_of("some_framework.other", package)) is SourceFileLoader
    assert sites.LEFT_ALONE == {}
    assert set() == sites.INSTRUMENTED_FILES


def test_the_installed_package_that_is_the_script_is_the_users(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime: Any = None
    script = ScriptFinder(runtime, lambda: None, {})
    script.run_module("some_framework.loops")
    spec = script.find_spec("some_framework.other", [str(package)])
    assert spec is not None
    assert type(spec.loader) is InstrumentedLoader
    assert set() == sites.PACKAGES


def test_a_module_of_the_users_without_loops_has_state_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "counters_of_mine.py").write_text("seen = 0")
    (tmp_path / "loops_of_mine.py").write_text(LOOPS)
    assert type(loader_of("counters_of_mine", tmp_path)) is SourceFileLoader
    assert type(loader_of("loops_of_mine", tmp_path)) is InstrumentedLoader
    assert {str(tmp_path / f"{name}_of_mine.py") for name in ("counters", "loops")} == sites.INSTRUMENTED_FILES
    assert sites.TEXTS.keys() == sites.INSTRUMENTED_FILES, "by what they hold another process knows them"


def test_a_script_without_loops_has_state_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_file.script_end, "expect", lambda runtime, *, from_file: None)
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    script, runtime = tmp_path / "train.py", cast(Any, None)
    script.write_text("losses = []\ntrainer.fit(losses)")
    run_file._prepare(str(script), runtime, lambda: None)
    assert {str(script)} == sites.INSTRUMENTED_FILES == sites.TEXTS.keys()
