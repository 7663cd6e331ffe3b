"""State where one seldom looks for it: attributes of tensors, tuples, numbers; an object's class; frozensets; objects of numpy."""

from __future__ import annotations

import contextlib
import functools
import pickle
from typing import Any, NamedTuple

import numpy
import pytest
import torch
import torch.distributed as dist
from support.host_state import carry, journal, no_saves, take

from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import encode, undo
from torchrelay.shim.capture.records.rebuild import StateRebuild
from torchrelay.shim.capture.state.change_detection import WalkAnew
from torchrelay.shim.capture.state.filled_queues import FilledQueues
from torchrelay.shim.capture.state.process_settings import ProcessSettings
from torchrelay.shim.capture.values import callables
from torchrelay.shim.capture.walks.rewalk import Rewalk
from torchrelay.shim.script.completed_collective import CompletedCollective


class Warm:
    def __init__(self) -> None:
        self.steps = 0


class Trained(Warm):
    pass


class Point(NamedTuple):
    x: float
    trail: list[int]


class Marked(Point):
    pass


class Noted(float):
    def __init__(self, _: float) -> None:
        self.seen = 0


def test_attributes_of_a_tensor_go_back_and_come_over() -> None:
    queue: Any = torch.zeros(4)
    queue.at = 1
    queue.log = [1]
    state = take({"queue": queue})
    queue.at = 2
    queue.log.append(2)
    queue.more = 3
    there: Any = torch.zeros(4)
    there.at = 0
    target = {"queue": there, "made": None}
    carry({"queue": queue, "made": [queue]}, target)
    assert target["queue"] is there
    assert vars(there) == {"at": 2, "log": [1, 2], "more": 3}
    undo.undo(state)
    assert vars(queue) == {"at": 1, "log": [1]}


def test_a_tensor_that_training_has_made_has_its_attributes() -> None:
    made: Any = torch.ones(2)
    made.at = 5
    target: dict[str, Any] = {"made": None}
    carry({"made": made}, target)
    assert (target["made"].at, target["made"].tolist()) == (5, [1.0, 1.0])


def test_the_first_attribute_of_a_tensor_is_seen_by_the_next_walk() -> None:
    queue: Any = torch.zeros(4)
    state = again({"queue": queue}, lambda: setattr(queue, "at", 7))
    assert {"at": 7} in [node.content for node in state.nodes]


def again(namespace: dict[str, Any], change: Any) -> Any:
    """Return the state of a walk that goes on from one before the change."""
    trees = ModuleTrees()
    base = take(namespace, trees)
    encode.encode(base)
    change()
    try:
        return Rewalk(trees, base, at_gate=False).run([], {"script": namespace})
    except WalkAnew:
        return take(namespace, trees)


def test_an_object_goes_back_to_its_class() -> None:
    phase = Warm()
    state = take({"phase": phase})
    phase.__class__ = Trained  # type: ignore[assignment]
    undo.undo(state)
    assert type(phase) is Warm


def test_an_object_whose_class_was_exchanged_is_written_down_anew() -> None:
    phase = Warm()
    state = again({"phase": phase}, lambda: setattr(phase, "__class__", Trained))
    written = encode.decode(encode.encode(state))
    assert [node.cls for node in written if node.cls is not None and issubclass(node.cls, Warm)] == [Trained]


def test_an_object_whose_class_was_exchanged_is_of_that_class_in_a_new_process() -> None:
    phase = Warm()
    phase.__class__ = Trained  # type: ignore[assignment]
    phase.steps = 3
    target = {"phase": Warm()}
    carry({"phase": phase}, target)
    assert type(target["phase"]) is Trained
    assert target["phase"].steps == 3


def test_a_frozenset_of_objects_has_the_same_objects() -> None:
    members = [Warm(), Warm(), Warm()]
    target: dict[str, Any] = {"members": [Warm(), Warm(), Warm()], "frozen": None}
    own = [*target["members"]]
    set_ups = target["frozen"] = frozenset(own)
    carry({"members": members, "frozen": frozenset(members)}, target)
    assert target["frozen"] is set_ups
    carry({"members": members, "frozen": frozenset(members[:2])}, target)
    assert target["frozen"] == {*own[:2]}


def test_a_frozenset_of_values_is_a_value() -> None:
    target: dict[str, Any] = {"a": None}
    carry({"a": frozenset({1, ("b", frozenset({2}))})}, target)
    assert target["a"] == {1, ("b", frozenset({2}))}


def test_attributes_of_a_named_tuple_go_back_and_come_over() -> None:
    point: Any = Marked(1.0, [1])
    point.hits = [1]
    state = take({"point": point})
    point.hits.append(2)
    point.more = 5
    set_ups: Any = Marked(1.0, [0])
    set_ups.hits = []
    target: dict[str, Any] = {"point": set_ups, "made": None}
    carry({"point": point, "made": (point,)}, target)
    assert vars(target["point"]) == {"hits": [1, 2], "more": 5}
    assert target["point"].trail == [1]
    assert vars(target["made"][0]) == {"hits": [1, 2], "more": 5}
    undo.undo(state)
    assert vars(point) == {"hits": [1]}


def test_attributes_of_a_number_go_back_and_come_over() -> None:
    number = Noted(1.5)
    state = take({"number": number})
    number.seen = 4
    target = {"number": Noted(1.5)}
    carry({"number": number}, target)
    assert (target["number"], target["number"].seen) == (1.5, 4)
    undo.undo(state)
    assert number.seen == 0


def test_a_polynomial_goes_back_and_comes_over() -> None:
    curve = numpy.poly1d([1.0, 2.0])
    state = take({"curve": curve})
    curve[0] = 7.0
    target = {"curve": numpy.poly1d([1.0, 2.0]), "more": None}
    carry({"curve": curve, "more": numpy.polynomial.Polynomial([1.0, 3.0])}, target)
    assert target["curve"](1.0) == 8.0
    assert target["more"](1.0) == 4.0
    undo.undo(state)
    assert curve(1.0) == 3.0


def test_iterators_of_numpy_are_named() -> None:
    state = take({"flat": numpy.arange(5).flat, "places": numpy.ndenumerate(numpy.arange(3))})
    assert [name for name, _ in state.iterators] == ["script.flat (flatiter)", "script.places (ndenumerate)"]


def test_what_an_exit_stack_has_to_do_goes_back() -> None:
    done: list[int] = []
    with contextlib.ExitStack() as stack:
        stack.callback(done.append, 1)
        state = take({"stack": stack})
        stack.callback(done.append, 2)
        undo.undo(state)
    assert done == [1]


def test_a_handle_of_a_collective_is_there_in_a_new_process() -> None:
    target: dict[str, Any] = {"work": None, "again": None}
    carry({"work": dist.Work(), "again": CompletedCollective()}, target)
    assert target["work"].wait()
    assert target["again"].is_completed()


def first(value: float) -> float:
    return value


def second(value: float) -> float:
    return 2 * value


def test_names_that_training_lets_mean_something_else_go_back_and_come_over() -> None:
    names: dict[str, Any] = {"loss": first, "made": None, "act": torch.tanh, "lib": numpy, "rule": Warm, "first": first}
    names["wave"] = numpy.sin
    target = dict(names)
    state = take(names)
    names.update({"loss": second, "made": second, "act": torch.sigmoid, "lib": torch, "rule": Trained})
    names["wave"] = numpy.cos
    changed = dict(names)
    carry(names, target)
    assert target == changed
    undo.undo(state)
    assert names == {
        **target,
        "loss": first,
        "made": None,
        "act": torch.tanh,
        "lib": numpy,
        "rule": Warm,
        "wave": numpy.sin,
    }


def test_what_is_bound_under_its_own_name_is_no_state() -> None:
    state = take({"first": first, "Warm": Warm, "numpy": numpy, "tanh": torch.tanh})
    assert [node.content for node in state.nodes] == [{}, {}]


def test_keywords_of_a_partial_function_that_training_writes_to_are_written_anew() -> None:
    rule = functools.partial(first, value=1.0)
    names = {"trainer": [rule]}
    trees = ModuleTrees()
    base = take(names, trees)
    encode.encode(base)
    rule.keywords["value"] = 4.0
    state = Rewalk(trees, base, at_gate=False).run([], {"script": names})
    target: dict[str, Any] = {"trainer": [functools.partial(first, value=1.0)]}
    rebuild = StateRebuild([], {"script": target}, no_saves, settings=ProcessSettings(), queues=FilledQueues())
    rebuild.resolve(encode.decode(encode.encode(state)))
    rebuild.fill()
    assert target["trainer"][0]() == 4.0


class Options:
    loss: Any = torch.tanh
    wrapper: Any = Warm

    def first(self) -> None: ...


def test_what_attributes_of_a_class_mean_goes_back_and_comes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callables, "is_users_class", lambda cls: cls is Options)
    state = take({"options": Options})
    monkeypatch.setattr(Options, "loss", second)
    monkeypatch.setattr(Options, "wrapper", Trained)
    written = journal({"options": Options})
    undo.undo(state)
    assert (Options.loss, Options.wrapper) == (torch.tanh, Warm)
    rebuild = StateRebuild(
        [], {"script": {"options": Options}}, no_saves, settings=ProcessSettings(), queues=FilledQueues()
    )
    rebuild.resolve(encode.decode(pickle.loads(written)))
    rebuild.fill()
    assert (Options.loss, Options.wrapper) == (second, Trained)


def test_an_object_that_answers_for_no_name_is_carried() -> None:
    """As numpy's `npz.f` does, of which each attribute is an array of the file."""

    class Answers:
        def __getattribute__(self, name: str) -> Any:
            raise AttributeError(name)

    then = Answers()
    object.__getattribute__(then, "__dict__")["value"] = 1
    names = {"bag": then}
    trees = ModuleTrees()
    state = take(names, trees)
    Rewalk(trees, state, at_gate=False).run([], {"script": names})
    object.__getattribute__(then, "__dict__")["value"] = 2
    undo.undo(state)
    assert object.__getattribute__(then, "__dict__") == {"value": 1}
