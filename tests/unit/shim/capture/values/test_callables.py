"""State that only a function, a class or a bound method leads to is seen, put back, and carried over."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.host_state import carry, take

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import undo
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.values.callables import leads_to_state
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.capture.walks.rewalk import Rewalk, WalkAnew
from torchrelay.shim.script import sites


@pytest.fixture(autouse=True)
def _this_file_is_the_scripts() -> Iterator[None]:
    sites.INSTRUMENTED_FILES.add(__file__)
    yield
    sites.INSTRUMENTED_FILES.discard(__file__)


class Meter:
    def __init__(self) -> None:
        self.total = 0.0

    def update(self, value: float) -> None:
        self.total += value


class Holder:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def counter() -> Callable[[], int]:
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return count

    return step


def logger() -> Callable[[float], list[float]]:
    seen: list[float] = []

    def log(value: float) -> list[float]:
        seen.append(value)
        return seen

    return log


def by_default() -> Callable[..., dict[str, int]]:
    def remember(name: str, cache: dict[str, int] = {}) -> dict[str, int]:  # noqa: B006 - the idiom in question
        cache[name] = cache.get(name, 0) + 1
        return cache

    return remember


def by_keyword() -> Callable[..., list[int]]:
    def remember(*, history: list[int] = []) -> list[int]:  # noqa: B006 - the idiom in question
        history.append(len(history))
        return history

    return remember


def with_attributes() -> Callable[[], int]:
    def step() -> int:
        step.calls = getattr(step, "calls", 0) + 1  # type: ignore[attr-defined]  # as scripts do
        return int(step.calls)  # type: ignore[attr-defined]  # as scripts do

    step.calls = 0  # type: ignore[attr-defined]  # as scripts do
    return step


def born_with_attributes() -> Callable[[], int]:
    step = with_attributes()
    del step.calls  # type: ignore[attr-defined]  # as scripts do
    return step


def method() -> Callable[[], float]:
    update = Meter().update

    def call() -> float:
        update(1.0)
        return update.__self__.total  # type: ignore[attr-defined, no-any-return]  # as scripts do

    return call


def bound() -> Any:
    return Meter().update


def appended() -> Any:
    return [].append


def partly() -> Any:
    return functools.partial(_add, [], times=2)


def _add(to: list[int], times: int) -> list[int]:
    to.extend(range(times))
    return to


def wrapped() -> Callable[[], int]:
    return torch.no_grad()(counter())


def fresh_class() -> type:
    class Counted:
        total = 0
        names: list[str] = []  # noqa: RUF012 - the idiom in question

        @classmethod
        def step(cls) -> tuple[int, list[str], int]:
            cls.total += 1
            cls.names.append(str(cls.total))
            cls.born = getattr(cls, "born", 0) + 1  # type: ignore[attr-defined]  # as scripts do
            return cls.total, list(cls.names), cls.born  # type: ignore[attr-defined]  # as scripts do

        @staticmethod
        def remember(cache: list[int] = []) -> list[int]:  # noqa: B006 - the idiom in question
            cache.append(1)
            return list(cache)

    return Counted


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "a counter in a closure": (counter, lambda f: f()),
    "a list in a closure": (logger, lambda f: list(f(1.0))),
    "a default argument": (by_default, lambda f: dict(f("a"))),
    "a keyword default": (by_keyword, lambda f: list(f())),
    "a function's attribute": (with_attributes, lambda f: f()),
    "a function's attribute that is born later": (born_with_attributes, lambda f: f()),
    "the object of a method in a closure": (method, lambda f: f()),
    "a bound method": (bound, lambda f: (f(1.0), f.__self__.total)),
    "a method of a list": (appended, lambda f: (f(1), list(f.__self__))),
    "a partial's arguments": (partly, lambda f: list(f())),
    "a counter behind a decorator of a library": (wrapped, lambda f: f()),
    "a class": (fresh_class, lambda cls: cls.step()),
    "a static method's default": (fresh_class, lambda cls: cls.remember()),
    "the class of an instance": (lambda: fresh_class()(), lambda obj: type(obj).step()),
}
PLACES: dict[str, Callable[[Any], Any]] = {
    "global": lambda value: value,
    "in a list": lambda value: [value],
    "in an attribute": lambda value: Holder(value=value),
    "in a module": lambda value: _module(value),
}


def _module(value: Any) -> torch.nn.Module:
    module = torch.nn.Linear(2, 2)
    module.callback = value
    return module


def _get(place: str, held: Any) -> Any:
    if place == "in a list":
        return held[0]
    return getattr(held, {"in an attribute": "value", "in a module": "callback"}[place]) if place != "global" else held


every = pytest.mark.parametrize("place", PLACES)
case = pytest.mark.parametrize("name", CASES)


@case
@every
def test_a_step_that_is_done_again_starts_from_what_was_there(name: str, place: str) -> None:
    make, step = CASES[name]
    held = PLACES[place](make())
    step(_get(place, held))
    state = take({"held": held})
    first = step(_get(place, held))
    undo.undo(state)
    assert step(_get(place, held)) == first


@case
@every
def test_a_new_process_goes_on_from_what_was_there(name: str, place: str) -> None:
    make, step = CASES[name]
    lost, joiner = PLACES[place](make()), PLACES[place](make())
    step(_get(place, lost))
    step(_get(place, lost))
    rebuild = carry({"held": lost}, {"held": joiner})
    rebuild.check_complete()
    assert step(_get(place, joiner)) == step(_get(place, lost))


def _again(namespace: dict[str, Any], base: HostState, trees: ModuleTrees) -> HostState:
    try:
        return Rewalk(trees, base, at_gate=False).run([], {"script": namespace})
    except WalkAnew:
        return take(namespace, trees)


@case
@every
def test_later_walks_see_each_change(name: str, place: str) -> None:
    make, step = CASES[name]
    namespace, trees = {"held": PLACES[place](make())}, ModuleTrees()
    state = take(namespace, trees)
    for _ in range(3):
        step(_get(place, namespace["held"]))
        state = _again(namespace, state, trees)
    first = step(_get(place, namespace["held"]))
    undo.undo(state)
    assert step(_get(place, namespace["held"])) == first


def test_a_walk_goes_on_where_only_a_counter_has_changed() -> None:
    step, log, update, trees = counter(), logger(), Meter().update, ModuleTrees()
    namespace = {"step": step, "log": log, "update": update}
    state = take(namespace, trees)
    step()
    log(1.0)
    update(1.0)
    later = Rewalk(trees, state, at_gate=False).run([], {"script": namespace})
    assert {node.kind for node in later.nodes} == {Kind.GLOBALS, Kind.SETTINGS, Kind.FUNCTION, Kind.LIST, Kind.ATTRS}


def test_an_attribute_that_a_step_gave_to_a_function_without_any_is_taken_away() -> None:
    step = born_with_attributes()
    state = take({"step": step})
    step()
    undo.undo(state)
    assert vars(step) == {}


class _Counting:
    def __init__(self) -> None:
        self.forwards = 0

    def hook(self, *_: Any) -> None:
        self.forwards += 1


def test_what_a_hook_of_a_module_belongs_to_is_carried() -> None:
    def make() -> tuple[torch.nn.Module, _Counting]:
        model, counting = torch.nn.Sequential(torch.nn.Linear(2, 2)), _Counting()
        model[0].register_forward_hook(counting.hook)
        return model, counting

    (lost, seen), (joiner, seen_there) = make(), make()
    lost(torch.ones(1, 2))
    carry({"model": lost}, {"model": joiner}).check_complete()
    assert (seen.forwards, seen_there.forwards) == (1, 1)
    state = take({"model": lost})
    lost(torch.ones(1, 2))
    undo.undo(state)
    assert seen.forwards == 1


def test_what_a_hook_of_an_optimizer_belongs_to_is_carried() -> None:
    counting, model = _Counting(), torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(counting.hook)
    state = take({"optimizer": optimizer})
    optimizer.step()
    undo.undo(state)
    assert counting.forwards == 0


def test_state_behind_a_hook_of_a_tensor_is_named() -> None:
    model, log = torch.nn.Linear(2, 2), logger()
    model.weight.register_hook(lambda grad: log(float(grad.sum())) and None)
    state = take({"model": model})
    assert state.unknown == ["script.model.weight (a hook of the tensor)"]


def test_a_function_with_state_that_training_has_made_is_refused() -> None:
    rebuild = carry({"kept": Holder(step=counter())}, {"kept": Holder(step=len)})
    assert rebuild.missing == ["function 'step'"]
    with pytest.raises(StateMismatchError, match=r"cannot be made again: 'step' \(function counter"):
        rebuild.check_complete()


def test_functions_of_libraries_and_those_with_nothing_behind_them_cost_nothing() -> None:
    def plain(scale: float = 2.0) -> float:
        return scale

    scale = 3.0
    namespace = {"plain": plain, "closed": lambda: scale, "library": torch.optim.lr_scheduler.LambdaLR, "len": len}
    assert [node.kind for node in take(namespace).nodes] == [Kind.GLOBALS, Kind.SETTINGS]
    assert not leads_to_state(torch.nn.functional.relu)
