"""Objects of packages that keep more than their attributes: a base in C, which says itself how to pickle it."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
from support.host_state import carry, take

from torchrelay.shim.capture.records.undo import undo
from torchrelay.shim.capture.values.kinds import Kind, kind_of

_in_c: weakref.WeakKeyDictionary[Any, list[float]] = weakref.WeakKeyDictionary()
"""What stands for memory of C: no attribute leads to it."""


class _InC:
    """A method that is no function of Python."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        return self if obj is None else lambda *args: self._call(obj, *args)


def _made(points: list[float]) -> Tree:
    return Tree(points)


class _TreeInC:
    def __init__(self, points: list[float]) -> None:
        _in_c[self] = points

    __reduce__ = _InC(lambda self: (_made, (_in_c[self],), (self.name, _in_c[self])))
    __setstate__ = _InC(lambda self, state: self.put(*state))


class Tree(_TreeInC):
    name = ""

    def put(self, name: str, points: list[float]) -> None:
        self.name = name
        _in_c[self] = points

    def nearest(self, to: float) -> float:
        return min(_in_c[self], key=lambda point: abs(point - to))


class OfTheScript(Tree):
    pass


def test_a_tree_that_training_builds_anew_is_there_in_a_new_process() -> None:
    target: dict[str, Any] = {"tree": Tree([1.0, 2.0]), "made": None}
    carry({"tree": Tree([5.0, 7.0]), "made": Tree([3.0])}, target)
    assert (target["tree"].nearest(6.5), target["made"].nearest(0)) == (7.0, 3.0)


def test_the_tree_of_set_up_stays_where_it_is_the_same() -> None:
    own = Tree([1.0, 2.0])
    target = {"tree": own}
    carry({"tree": Tree([1.0, 2.0])}, target)
    assert target["tree"] is own


def test_what_a_step_has_written_there_goes_back() -> None:
    tree = Tree([1.0])
    state = take({"tree": tree})
    tree.put("other", [9.0])
    undo(state)
    assert (tree.name, tree.nearest(0)) == ("", 1.0)


def test_classes_of_the_script_are_known_by_their_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kind_of(Tree) is Kind.UNKNOWN
    monkeypatch.setattr(OfTheScript, "__module__", "__main__")
    assert kind_of(OfTheScript) is Kind.ATTRS
