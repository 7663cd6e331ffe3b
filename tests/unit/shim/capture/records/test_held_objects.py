"""Objects that are keys or elements, kept calls, containers that hold weakly, views and signals go back, and come over."""

from __future__ import annotations

import functools
import logging
import threading
import types
import weakref
from typing import Any

import pytest
import torch
from support.host_state import carry, differences, journal, take
from torch import nn

from torchrelay.shim.adapters.cpython import call_caches
from torchrelay.shim.capture.handlers import caches
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import encode, undo
from torchrelay.shim.capture.state.process_wide import HeldByProcess
from torchrelay.shim.capture.values import callables
from torchrelay.shim.capture.values.large_arrays import LargeArrays
from torchrelay.shim.capture.walks.rewalk import Rewalk
from torchrelay.shim.observe.unseen_changes import UnseenChanges


class Counter:
    def __init__(self, count: int = 0) -> None:
        self.count = count

    def __call__(self, *_: Any) -> None:
        self.count += 1


@pytest.fixture(autouse=True)
def _of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callables, "is_users", lambda file: file == __file__)


def counts(held: Any) -> list[int]:
    return sorted(each.count for each in held)


HOLDERS: list[Any] = [set, frozenset, lambda made: dict.fromkeys(made, 1), lambda made: (frozenset(made), 1)[:1]]


def flat(held: Any) -> Any:
    return held[0] if isinstance(held, tuple) else held


@pytest.mark.parametrize("hold", HOLDERS)
def test_objects_that_only_a_container_holds(hold: Any) -> None:
    here = {"held": hold([Counter(1), Counter(2), Counter(3)])}
    there = {"held": hold([Counter(), Counter(), Counter()])}
    carry(here, there)
    assert counts(flat(there["held"])) == [1, 2, 3]
    found = differences(*(encode.decode(encode_of(each)) for each in (here, there)))
    assert found == []
    state = take(here)
    for each in flat(here["held"]):
        each.count += 5
    undo.undo(state)
    assert counts(flat(here["held"])) == [1, 2, 3]
    next(iter(flat(there["held"]))).count = 9
    assert differences(*(encode.decode(encode_of(each)) for each in (here, there)))


def test_large_tensors_and_models_of_a_set_have_names_of_their_own_or_are_named() -> None:
    large = [torch.zeros(1 << 15), torch.ones(1 << 15)]
    assert sorted(take({"held": dict.fromkeys(large, 1)}).large) == ["script.held{Tensor 1}", "script.held{Tensor}"]
    for held in ({*large}, {nn.Linear(2, 2), nn.Linear(2, 2)}):
        state = take({"held": held})
        assert not state.large
        assert not state.roots
        assert [name.endswith(callables.WITHOUT_ORDER) for name in state.unknown] == [True, True]
        changes = UnseenChanges()
        changes.look(state, 0, LargeArrays())
        assert len(changes.found) == 2
        known = take({"held": held, "also": [*held]})
        assert len(known.large or known.roots) == 2
        assert not known.unknown
    assert [*take({"held": {large[0], nn.Linear(2, 2)}}).large] == ["script.held{Tensor}"]
    layer = nn.Linear(256, 256)
    assert not take({"layer": layer, "held": {*layer.parameters()}}).unknown


def test_very_many_objects_of_a_set_or_of_keys_are_data() -> None:
    many = [Counter(place) for place in range(5000)]
    for held in ({*many}, dict.fromkeys(many, 1), {(many[0], place): 1 for place in range(5000)}):
        state = take({"held": held})
        assert len(state.nodes) < 10
        held.pop(many[1], None) if isinstance(held, dict) else held.discard(many[1])
        held.add(many[0].__class__()) if isinstance(held, set) else held.update(new=1)
        undo.undo(state)
        assert len(held) == 5000
        assert "new" not in held


@pytest.mark.parametrize("kind", [weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary])
def test_what_is_held_weakly_is_not_gone_through_where_it_is_as_it_was(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(count: int) -> tuple[dict[str, Any], Any]:
        owners = [Counter() for _ in range(count)]
        held = kind(owners) if kind is weakref.WeakSet else kind()
        for owner in owners if kind is weakref.WeakKeyDictionary else ():
            held[owner] = 1
        for place, owner in enumerate(owners) if kind is weakref.WeakValueDictionary else ():
            held[place] = owner
        return {"owners": owners, "held": held}, held

    names, held = made(3)
    trees = ModuleTrees()
    state = take(names, trees)
    looks: list[Any] = []
    monkeypatch.setattr(caches, "_held", lambda obj: looks.append(obj) or _held(obj))
    state = Rewalk(trees, state, at_gate=False).run([], {"script": names})
    assert looks == []
    (held.pop if kind is not weakref.WeakKeyDictionary else held.popitem)(*[0][: kind is weakref.WeakValueDictionary])
    assert len(held) == 2
    Rewalk(trees, state, at_gate=False).run([], {"script": names})
    assert looks
    names, held = made(5000)
    assert id(held) not in take(names).index


_held = caches._held


def encode_of(names: dict[str, Any]) -> Any:
    import pickle

    return pickle.loads(journal(names))


def kept(size: int | None) -> Any:
    @functools.lru_cache(maxsize=size)
    def draw(number: Any, *, by: int = 0) -> list[float]:
        return torch.rand(2).tolist()

    return draw


@pytest.mark.parametrize("size", [None, 4])
def test_what_a_function_keeps_of_its_calls(size: int | None) -> None:
    here, there = kept(size), kept(size)
    calls = [functools.partial(here, 1), functools.partial(here, "two", by=3), functools.partial(here, (4, 5.0))]
    results = [call() for call in calls]
    there(7)
    carry({"draw": here}, {"draw": there})
    assert [there(1), there("two", by=3), there((4, 5.0))] == results
    assert len(call_caches.entries(there) or {}) == 3
    state = take({"draw": here})
    calls[0]().append(9.0)
    here(8)
    undo.undo(state)
    assert [call() for call in calls] == results
    assert len(results[0]) == 2
    assert len(call_caches.entries(here) or {}) == 3


@pytest.mark.parametrize("size", [None, 4])
def test_what_a_function_keeps_of_calls_that_types_tell_apart(size: int | None) -> None:
    made: list[int] = []

    @functools.lru_cache(maxsize=size, typed=True)
    def draw(number: Any, *, by: Any = 0) -> int:
        made.append(0)
        return len(made)

    def results() -> list[int]:
        return [draw(1), draw(1.0), draw(1, by=2), draw(1, by=2.0)]

    before = results()
    state = take({"draw": draw})
    draw(8)
    undo.undo(state)
    assert results() == before == [1, 2, 3, 4]


def test_a_cache_with_a_size_drops_the_oldest_first_as_before() -> None:
    here, there = kept(2), kept(2)
    here(1), here(2), here(1)
    carry({"draw": here}, {"draw": there})
    there(3)
    assert [*(call_caches.entries(there) or {})] == [1, 3]


def test_what_is_held_weakly() -> None:
    def build() -> dict[str, Any]:
        owners = [Counter(), Counter()]
        return {
            "owners": owners,
            "all": weakref.WeakSet(owners[:1]),
            "by_name": weakref.WeakValueDictionary({"a": owners[0]}),
            "notes": weakref.WeakKeyDictionary({owners[0]: [1]}),
        }

    here, there = build(), build()
    first, second = here["owners"]
    here["all"].add(second)
    here["by_name"]["b"] = second
    here["notes"][second] = [2]
    here["notes"][first].append(3)
    carry(here, there)
    assert {*there["all"]} == {*there["owners"]}
    assert [*there["by_name"].values()] == there["owners"]
    assert [*there["notes"].values()] == [[1, 3], [2]]
    assert [*there["notes"]] == there["owners"]
    state = take(here)
    here["all"].discard(first)
    del here["by_name"]["a"], here["notes"][first]
    undo.undo(state)
    assert (len(here["all"]), [*here["by_name"]], [*here["notes"].values()]) == (2, ["a", "b"], [[1, 3], [2]])


def test_nobody_is_kept_alive_by_what_holds_weakly() -> None:
    names: dict[str, Any] = {"all": weakref.WeakSet()}
    lone = Counter()
    names["all"].add(lone)
    state = take(names)
    del lone
    assert not names["all"]
    undo.undo(state)


def test_what_a_view_looks_at_and_signals() -> None:
    def build() -> dict[str, Any]:
        view = types.MappingProxyType({"a": Counter()})
        return {"view": view, "stop": threading.Event(), "room": threading.Semaphore(5)}

    here, there = build(), build()
    here["view"]["a"].count = 4
    here["stop"].set()
    here["room"].acquire()
    carry(here, there)
    assert (there["view"]["a"].count, there["stop"].is_set(), there["room"]._value) == (4, True, 4)
    state = take(here)
    here["stop"].clear()
    undo.undo(state)
    assert here["stop"].is_set()


def test_a_view_of_a_class_is_not_looked_at() -> None:
    assert [*callables.parts(vars(Counter))] == []


@pytest.mark.parametrize(
    "register",
    [
        lambda model, hook: model.register_forward_hook(hook),
        lambda model, hook: model._register_state_dict_hook(hook),
        lambda model, hook: model._register_load_state_dict_pre_hook(hook),
        lambda model, hook: model.register_load_state_dict_post_hook(hook),
    ],
)
def test_a_hook_that_is_an_object(register: Any) -> None:
    models = [nn.Linear(1, 1), nn.Linear(1, 1)]
    hooks = [Counter(3), Counter()]
    for model, hook in zip(models, hooks):
        register(model, hook)
    carry({"model": models[0]}, {"model": models[1]})
    assert hooks[1].count == 3


def test_hooks_of_all_modules_go_back_and_what_only_a_logger_holds_is_state() -> None:
    hook, holds = Counter(2), HeldByProcess()
    handle = nn.modules.module.register_module_forward_hook(hook)
    logger = logging.getLogger("torchrelay.tests.held")
    handler = Rows()
    logger.addHandler(handler)
    try:
        state = take({})
        hook.count = 7
        handler.rows = 5
        later = nn.modules.module.register_module_forward_hook(Counter())
        assert len(holds.now()) == 3
        undo.undo(state)
        assert (hook.count, handler.rows, len(holds.now())) == (2, 0, 2)
        later.remove()
    finally:
        handle.remove()
        logger.removeHandler(handler)
    assert holds.now() == {}


class Rows(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.rows = 0
