from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from torchrelay.shim.bootstrap import import_finder, loaded_by_file
from torchrelay.shim.bootstrap.import_finder import ScriptFinder
from torchrelay.shim.capture.values import callables
from torchrelay.shim.journal.script_modules import ScriptModules
from torchrelay.shim.script import sites

CONFIG = """
steps = 0
class Head:
    count = 0
def train(batches, optimizer):
    global steps
    for batch in batches:
        steps += 1
"""


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_finder, "default_folder", lambda: None)
    for name in ("PACKAGES", "INSTRUMENTED_FILES"):
        monkeypatch.setattr(sites, name, set())
    for name in ("LEFT_ALONE", "TEXTS", "LOADED_FROM", "SITES"):
        monkeypatch.setattr(sites, name, {})
    monkeypatch.setattr(sites, "LOADED_BY_FILE", [])
    monkeypatch.setattr(importlib.util, "module_from_spec", importlib.util.module_from_spec)
    runtime: Any = None
    loaded_by_file.follow(ScriptFinder(runtime, lambda: None, {}))


def load(file: Path) -> ModuleType:
    """Load a module as scripts do that are given the file of their configuration."""
    spec = importlib.util.spec_from_file_location("config_of_test", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_variables_of_a_module_that_is_loaded_by_its_file_are_state(tmp_path: Path) -> None:
    modules = ScriptModules()
    before = modules.namespaces()
    (tmp_path / "config.py").write_text("steps = 0\nclass Head:\n    count = 0\ndef bump():\n    pass\n")
    first, second = load(tmp_path / "config.py"), load(tmp_path / "config.py")
    found = [space for name, space in modules.namespaces().items() if name not in before]
    assert len(found) == 2
    assert found[0] is vars(first)
    assert found[1] is vars(second)
    assert callables.is_users_class(first.Head)
    assert callables.is_users_function(first.bump)


def test_its_loops_are_rewritten(tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text(CONFIG)
    spec = importlib.util.spec_from_file_location("config_of_test", tmp_path / "config.py")
    assert spec is not None
    importlib.util.module_from_spec(spec)
    assert type(spec.loader) is import_finder.InstrumentedLoader


def test_an_installed_one_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "config.py").write_text("steps = 0")
    load(folder / "config.py")
    assert sites.LOADED_BY_FILE == []
    assert set() == sites.INSTRUMENTED_FILES
