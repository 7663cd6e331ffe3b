from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from torchrelay.shim.journal.payload import SetUpJournal
from torchrelay.shim.journal.writer import ScriptModules, Writer, plain_range


def test_another_outermost_loop_begins_anew_and_so_does_the_same_one_a_second_time() -> None:
    engine: Any = SimpleNamespace(tracker=SimpleNamespace(stack=[]))
    writer = Writer(engine)
    engine.tracker.stack = [SimpleNamespace(site="set-up", entry=1), SimpleNamespace(site="inner", entry=0)]
    assert writer.begins_anew()
    writer._set_up = SetUpJournal("set-up", 1, (), (), (), young=False)
    assert not writer.begins_anew()
    engine.tracker.stack = [SimpleNamespace(site="set-up", entry=2)]
    assert writer.begins_anew()


def test_a_lazy_module_is_not_asked_for_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would import what it stands for, and fail where that is not installed."""

    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise ImportError(name)

    monkeypatch.setitem(sys.modules, "some_lazy_module", Lazy("some_lazy_module"))
    assert "some_lazy_module" not in ScriptModules().namespaces()


@pytest.mark.parametrize(
    ("iterator", "kept"), [(iter(range(3)), True), (iter(range(1 << 70)), True), (iter([1]), False)]
)
def test_only_iterators_of_ranges_are_carried_as_they_are(iterator: object, kept: bool) -> None:
    assert (plain_range(iterator) is iterator) is kept
