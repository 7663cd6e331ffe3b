"""Nodes that are looked at in one go: every change is seen, and nothing is kept alive for it."""

from __future__ import annotations

import collections
import gc
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from support.host_state import take

from torchrelay.shim.adapters.raw_memory import object_words
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.walks.rewalk import Rewalk
from torchrelay.shim.capture.walks.watched import Watched


class Holder:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def registry(size: int = 200) -> dict[str, Any]:
    return {f"m{i}": Holder(name=str(i), tags=[i, float(i)], extra={"n": i}) for i in range(size)}


def again(namespace: dict[str, Any], base: HostState, trees: ModuleTrees) -> HostState:
    return Rewalk(trees, base, at_gate=False).run([], {"script": namespace})


def changed(namespace: dict[str, Any], change: Callable[[], Any]) -> set[str]:
    """Paths of the nodes that may be others, of those that nothing else than the look in one go finds the same."""
    trees = ModuleTrees()
    state = take(namespace, trees)
    watched = Watched(trees, state)
    always = set(watched.look())
    change()
    return {state.path(number) for number in set(watched.look()) - always}


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "an attribute is bound anew": (lambda r: setattr(r["m7"], "name", "other"), "script.registry.m7"),
    "an attribute is born": (lambda r: setattr(r["m7"], "late", 1), "script.registry.m7"),
    "an attribute is deleted": (lambda r: delattr(r["m7"], "name"), "script.registry.m7"),
    "attributes are exchanged": (lambda r: setattr(r["m7"], "__dict__", dict(vars(r["m7"]))), "script.registry.m7"),
    "a list's item": (lambda r: r["m7"].tags.__setitem__(0, object()), "script.registry.m7.tags"),
    "a list that grows": (lambda r: r["m7"].tags.append(1), "script.registry.m7.tags"),
    "a list in another order": (lambda r: r["m7"].tags.reverse(), "script.registry.m7.tags"),
    "a dict's value": (lambda r: r["m7"].extra.update(n=-1), "script.registry.m7.extra"),
    "a dict in another order": (lambda r: r.update(m0=r.pop("m0")), "script.registry"),
}


def shift(found: dict[str, Any]) -> None:
    """What stands one behind the other is the same as before, though each list holds something else."""
    first, second, third = (found[name].tags for name in ("m7", "m8", "m9"))
    second.insert(0, first.pop())
    third.insert(0, second.pop())


@pytest.mark.parametrize("look_first", [True, False])
def test_items_that_move_from_list_to_list_are_seen_in_each(look_first: bool) -> None:
    found = registry()
    namespace, trees = {"registry": found}, ModuleTrees()
    base = take(namespace, trees)
    if look_first:
        base = again(namespace, base, trees)
    shift(found)
    now = again(namespace, base, trees)
    paths = {now.path(number) for number in now.renewed}
    assert {f"script.registry.m{n}.tags" for n in (7, 8, 9)} <= {
        path.replace("['", ".").replace("']", "") for path in paths
    }


def test_an_empty_list_that_grows_is_seen() -> None:
    found = {f"m{n}": Holder(tags=[]) for n in range(200)}
    namespace, trees = {"registry": found}, ModuleTrees()
    base = again(namespace, take(namespace, trees), trees)
    found["m3"].tags.append(1)
    now = again(namespace, base, trees)
    assert [now.nodes[number].content for number in now.renewed] == [[1]]
    found["m3"].tags[0] = 2  # as long as before
    now = again(namespace, now, trees)
    assert [now.nodes[number].content for number in now.renewed] == [[2]]
    found["m3"].tags.clear()
    now = again(namespace, now, trees)
    assert [now.nodes[number].content for number in now.renewed] == [[]]


@pytest.mark.skipif(not object_words.WORKS, reason="this interpreter keeps no versions of dictionaries")
@pytest.mark.parametrize("what", CHANGES)
def test_each_change_is_seen_where_it_is(what: str) -> None:
    change, path = CHANGES[what]
    found = registry()
    seen = changed({"registry": found}, lambda: change(found))
    assert path in seen, seen
    assert len(seen) <= 64, "lists are compared in blocks, everything else by itself"


def test_nothing_that_is_as_it_was_is_looked_at_by_itself() -> None:
    found = registry()
    trees = ModuleTrees()
    state = take({"registry": found}, trees)
    assert len(state.nodes) > 600
    if object_words.WORKS:
        assert len(Watched(trees, state).look()) < 5


def test_what_a_function_is_bound_to_is_seen() -> None:
    cell: Any = types.CellType([1])
    code = (lambda: None).__code__
    assert code is not None
    if object_words.WORKS:

        def outer() -> tuple[Any, Any]:
            value = [1]

            def read() -> Any:
                return value

            def write(new: Any) -> None:
                nonlocal value
                value = new

            return read, write

        read, write = outer()
        vars(read)
        words = object_words.Words(object_words.of_function(read), [3] * len(object_words.of_function(read)))
        assert words.look() == set()
        write([2])
        assert words.look() == {3}
        words.keep()
        read.late = cell
        assert words.look() == {3}


def test_a_dict_whose_order_can_change_without_a_write_is_looked_at_by_itself() -> None:
    ordered = collections.OrderedDict(a=1, b=2)
    namespace, trees = {"ordered": ordered}, ModuleTrees()
    base = take(namespace, trees)
    assert again(namespace, base, trees).renewed == set()
    ordered.move_to_end("a")
    assert again(namespace, base, trees).renewed != set()


def test_what_the_script_lets_go_is_let_go() -> None:
    found = registry(20)
    namespace: dict[str, Any] = {"registry": found}
    trees = ModuleTrees()
    state = again(namespace, take(namespace, trees), trees)
    gone = weakref.ref(found["m3"])
    del found["m3"]
    state = again(namespace, state, trees)
    gc.collect()
    assert gone() is None
    again(namespace, state, trees)


def test_objects_that_come_later_are_sorted_in_once_they_are_many() -> None:
    namespace: dict[str, Any] = {"history": [], "state": Holder(step=0)}
    trees = ModuleTrees()
    state = take(namespace, trees)
    for step in range(600):
        namespace["history"].append({"step": step})
        namespace["state"].step = step
        state = again(namespace, state, trees)
    if object_words.WORKS:
        assert len(trees.watched.look() if trees.watched else []) < 400
    assert len(state.nodes) > 600


@pytest.mark.skipif(not object_words.WORKS, reason="this interpreter keeps no versions of dictionaries")
def test_what_changes_now_and_then_is_watched_on_and_what_changes_in_each_step_is_looked_at() -> None:
    found = registry()
    namespace, trees = {"registry": found}, ModuleTrees()
    state = take(namespace, trees)
    looked_at = len(Watched(trees, state).look())
    state = again(namespace, state, trees)
    for change in range(1, 9):
        found["m3"].extra["n"] = found["m5"].tags[0] = change * 1000
        found["m7"].name = str(change * 1000)
        state = again(namespace, state, trees)
        contents = [state.nodes[number].content for number in state.renewed]
        assert {"n": change * 1000} in contents
        assert [change * 1000, 5.0] in contents
        assert {"name", "tags", "extra"} in map(set, contents)
        assert len(contents) == 3
        assert len(trees.watched.look()) == looked_at + (3 if change > 3 else 0)


@pytest.mark.skipif(not object_words.WORKS, reason="this interpreter keeps no versions of dictionaries")
def test_a_change_behind_a_look_is_seen_by_the_next_one_though_the_object_has_just_changed() -> None:
    found = registry()
    namespace, trees = {"registry": found}, ModuleTrees()
    state = again(namespace, take(namespace, trees), trees)
    found["m3"].__dict__ = {"name": "3", "tags": [], "extra": {}}  # other attributes than those that are watched
    state = again(namespace, state, trees)
    found["m3"].name = "another"
    state = again(namespace, state, trees)
    assert [state.nodes[number].content["name"] for number in state.renewed] == ["another"]


@pytest.mark.skipif(not object_words.WORKS, reason="this interpreter keeps no versions of dictionaries")
@pytest.mark.parametrize("at_once", [2, 1000])
def test_words_tell_whose_they_are_and_are_not_read_once_forgotten(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_words, "_AT_ONCE", at_once)
    spaces: dict[int, dict[str, int]] = {number * 10: {} for number in range(9)}
    words = object_words.Words([*map(object_words.of_dict, spaces.values())], [*spaces])
    for number, space in spaces.items():
        space["a"] = number
        assert words.look() == {number}
        words.keep()
    words.forget({30, 80})
    assert words.look() == set()
    for space in spaces.values():
        space["a"] = -1
    assert words.look() == spaces.keys() - {30, 80}
