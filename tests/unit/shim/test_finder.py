from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from torchrelay.shim import finder, run_file, sites
from torchrelay.shim.adapters.frameworks import TRAINING_LOOPS
from torchrelay.shim.finder import InstrumentedLoader, ScriptFinder
from torchrelay.shim.instrument import instrument

LOOPS = """
class Loop:
    def run(self):
        for item in self.items(): item.step()
    def other(self):
        for i in f(): g(i)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed framework, one of whose modules is known to hold training loops."""
    folder = tmp_path / "site-packages" / "some_framework"
    folder.mkdir(parents=True)
    for name in ("__init__", "loops", "moved", "other"):
        (folder / f"{name}.py").write_text(LOOPS)
    monkeypatch.syspath_prepend(str(folder.parent))
    known = {"some_framework.loops": frozenset({"Loop.run"}), "some_framework.moved": frozenset({"Loop.fit"})}
    monkeypatch.setattr(finder, "TRAINING_LOOPS", known)
    monkeypatch.setattr(sites, "PACKAGES", set())
    monkeypatch.setattr(sites, "LEFT_ALONE", {})
    yield folder
    for name in [n for n in sys.modules if n.startswith("some_framework")]:
        del sys.modules[name]


def loader_of(name: str, folder: Path) -> Any:
    runtime: Any = None
    spec = ScriptFinder(runtime, lambda: None, {}).find_spec(name, [str(folder)])
    assert spec is not None
    return spec.loader


def test_the_training_loops_of_a_known_framework_are_rewritten_where_it_is_installed(package: Path) -> None:
    loader = loader_of("some_framework.loops", package)
    assert type(loader) is InstrumentedLoader
    assert {str(package / "loops.py")} == sites.PACKAGES
    assert [site.function for site in loader._made.sites] == ["Loop.run"]


def test_the_rest_of_an_installed_package_is_left_alone(package: Path) -> None:
    assert type(loader_of("some_framework.other", package)) is SourceFileLoader
    assert sites.LEFT_ALONE == {}


def test_a_module_of_the_users_without_loops_has_state_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sites, "INSTRUMENTED_FILES", set())
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "counters_of_mine.py").write_text("seen = 0")
    (tmp_path / "loops_of_mine.py").write_text(LOOPS)
    assert type(loader_of("counters_of_mine", tmp_path)) is SourceFileLoader
    assert type(loader_of("loops_of_mine", tmp_path)) is InstrumentedLoader
    assert {str(tmp_path / f"{name}_of_mine.py") for name in ("counters", "loops")} == sites.INSTRUMENTED_FILES


def test_a_script_without_loops_has_state_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "INSTRUMENTED_FILES", set())
    monkeypatch.setattr(run_file.script_end, "expect", lambda runtime, *, from_file: None)
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    script, runtime = tmp_path / "train.py", cast(Any, None)
    script.write_text("losses = []\ntrainer.fit(losses)")
    run_file._prepare(str(script), runtime, lambda: None)
    assert {str(script)} == sites.INSTRUMENTED_FILES


def test_a_version_that_has_moved_its_loops_is_named(package: Path) -> None:
    assert type(loader_of("some_framework.moved", package)) is SourceFileLoader
    assert sites.LEFT_ALONE.popitem() == (str(package / "moved.py"), "this version has none of Loop.fit")


@pytest.mark.parametrize("name", TRAINING_LOOPS)
def test_the_named_functions_are_there_in_the_versions_that_are_installed(name: str) -> None:
    package, *inner = name.split(".")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    file = Path(spec.submodule_search_locations[0], *inner).with_suffix(".py")
    made = instrument(file.read_bytes(), str(file), only=TRAINING_LOOPS[name])
    assert {site.function for site in made.sites} == TRAINING_LOOPS[name]
