from __future__ import annotations

import array
import collections
import random
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import numpy
import pytest
import torch
from support.host_state import take

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.records import undo


class Holder:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Slotted:
    __slots__ = ("count", "log")


class Guarded:
    def __init__(self) -> None:
        self._best = (1.0, [1])

    @property
    def best(self) -> Any:
        return self._best

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        object.__setattr__(self, "touched", True)


def test_containers_get_their_content_back_in_place() -> None:
    originals = {
        "list": [1, [2]],
        "dict": {"a": 1},
        "ordered": collections.OrderedDict(a=1, b=2),
        "counter": collections.Counter("aab"),
        "default": collections.defaultdict(list, a=[1]),
        "deque": collections.deque([1, 2], maxlen=2),
        "set": {1, 2},
        "bytes": bytearray(b"ab"),
    }
    namespace: dict[str, Any] = dict(originals)
    state = take(namespace)
    namespace["list"][1].append(3)
    namespace["list"].append(4)
    namespace["dict"]["b"] = 2
    namespace["ordered"].move_to_end("a")
    namespace["counter"]["c"] += 1
    namespace["default"]["a"].append(2)
    namespace["default"]["b"].append(2)
    namespace["deque"].append(3)
    namespace["set"].add(3)
    namespace["bytes"] += b"c"
    namespace["list"], namespace["dict"] = [], {}
    undo.undo(state)
    assert all(namespace[name] is obj for name, obj in originals.items())
    assert namespace["list"] == [1, [2]]
    assert namespace["dict"] == {"a": 1}
    assert list(namespace["ordered"]) == ["a", "b"]
    assert namespace["counter"] == {"a": 2, "b": 1}
    assert namespace["default"] == {"a": [1]}
    assert namespace["default"].default_factory is list
    assert (list(namespace["deque"]), namespace["deque"].maxlen) == ([1, 2], 2)
    assert namespace["set"] == {1, 2}
    assert namespace["bytes"] == b"ab"


def test_values_that_compare_equal_are_still_told_apart() -> None:
    namespace = {"values": [0.0, 1], "pairs": [(1, 2)]}
    state = take(namespace)
    namespace["values"][:] = [-0.0, True]
    undo.undo(state)
    assert str(namespace["values"]) == "[0.0, 1]"


def test_attributes_born_since_are_taken_away_and_properties_are_not_called() -> None:
    holder, guarded = Holder(a=1), Guarded()
    del guarded.__dict__["touched"]
    state = take({"holder": holder, "guarded": guarded})
    holder.b = [1]  # type: ignore[attr-defined]  # as scripts do
    guarded._best[1].append(2)
    guarded._best = (0.5, [])
    undo.undo(state)
    assert vars(holder) == {"a": 1}
    assert guarded.best == (1.0, [1])
    assert "touched" not in vars(guarded)


def test_slots_are_put_back() -> None:
    slotted = Slotted()
    slotted.count, slotted.log = 1, [1]
    state = take({"slotted": slotted})
    slotted.log.append(2)
    slotted.count = 2
    undo.undo(state)
    assert (slotted.count, slotted.log) == (1, [1])


def test_a_slot_that_was_born_since_is_unbound_again() -> None:
    slotted = Slotted()
    slotted.count = 1
    state = take({"slotted": slotted})
    slotted.log = [1]
    undo.undo(state)
    assert not hasattr(slotted, "log")


def test_tensors_and_arrays_are_written_in_place_so_that_aliases_see_it() -> None:
    tensor, array = torch.zeros(4), numpy.zeros(3)
    view, rows = tensor[1:3], array[:2]
    namespace: dict[str, Any] = {"tensor": tensor, "array": array}
    state = take(namespace)
    tensor += 1
    array += 1
    namespace["tensor"] = namespace["tensor"] * 2
    undo.undo(state)
    assert namespace["tensor"] is tensor
    assert view.tolist() == [0.0, 0.0]
    assert rows.tolist() == [0.0, 0.0]


def test_generators_of_every_kind_draw_the_same_again() -> None:
    namespace: dict[str, Any] = {
        "python": random.Random(1),
        "torch": torch.Generator().manual_seed(1),
        "numpy": numpy.random.default_rng(1),
        "old": numpy.random.RandomState(1),
    }

    def draw() -> list[Any]:
        n = namespace
        return [
            n["python"].gauss(0, 1),
            torch.rand(1, generator=n["torch"]).item(),
            n["numpy"].normal(),
            n["old"].normal(),
        ]

    draw()
    state = take(namespace)
    first = draw()
    undo.undo(state)
    assert draw() == first


def test_objects_of_c_that_pickle_are_put_back_in_place() -> None:
    numbers = array.array("d", [1.0, 2.0])
    node = ElementTree.Element("step", {"number": "1"})
    namespace = {"numbers": numbers, "node": node}
    state = take(namespace)
    numbers[0] = 5.0
    numbers.append(3.0)
    node.set("number", "2")
    node.append(ElementTree.Element("loss"))
    undo.undo(state)
    assert namespace == {"numbers": numbers, "node": node}
    assert numbers.tolist() == [1.0, 2.0]
    assert (node.attrib, len(node)) == ({"number": "1"}, 0)


def test_module_flags_own_attributes_and_buffers_are_put_back() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2))
    model[1].calls = 1  # type: ignore[assignment]  # torch declares tensors and modules alone
    model[1].seen = []  # type: ignore[assignment]  # torch declares tensors and modules alone
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    state = take({"model": model})
    model(torch.randn(4, 2))
    model.eval()
    model[1].calls = 2  # type: ignore[assignment]  # torch declares tensors and modules alone
    model[1].seen.append(1)  # type: ignore[union-attr, operator]  # declared wider than it is here
    model[1].born = 1  # type: ignore[assignment]  # torch declares tensors and modules alone
    undo.undo(state)
    assert all(module.training for module in model.modules())
    assert (model[1].calls, model[1].seen) == (1, [])
    assert not hasattr(model[1], "born")
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_param_groups_and_schedulers_go_back() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    state = take({"optimizer": optimizer, "scheduler": scheduler})
    optimizer.param_groups[0]["lr"] = 7.0
    optimizer.param_groups[0]["note"] = "born"
    scheduler.last_epoch = 9
    undo.undo(state)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert "note" not in optimizer.param_groups[0]
    assert scheduler.last_epoch == 0
    assert optimizer.param_groups[0]["params"][0] is model.weight


def test_a_large_tensor_that_was_written_to_is_an_error_and_names_it() -> None:
    namespace = {"cache": torch.zeros(100_000), "model": torch.nn.Linear(300, 300)}
    state = take(namespace)
    undo.undo(state)
    namespace["cache"] += 1  # type: ignore[assignment, operator]  # as scripts do
    with pytest.raises(StateMismatchError, match=r"script\.cache"):
        undo.undo(state)


@pytest.mark.parametrize("history", [[torch.zeros(1)] * 5_000, dict.fromkeys(range(5_000), torch.zeros(1))])
def test_what_was_taken_for_data_and_grew_is_an_error_and_not_left_as_it_is(history: Any) -> None:
    state = take({"holder": Holder(history=history)})
    undo.undo(state)
    if isinstance(history, list):
        history.append(torch.ones(1))
    else:
        history[-1] = torch.ones(1)
    with pytest.raises(StateMismatchError, match=r"script\.holder\.history"):
        undo.undo(state)


class Stream(torch.utils.data.IterableDataset[int]):
    def __init__(self) -> None:
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        return iter(())


def test_a_stream_stays_where_it_is_since_what_was_drawn_comes_again_from_the_record() -> None:
    stream = Stream()
    state = take({"stream": stream})
    stream.read = 7
    undo.undo(state)
    assert stream.read == 7


class Wrapper:
    """As accelerate's loaders are: its class is said to be that of what it wraps, which a joiner's copy may lack."""

    @property
    def __class__(self) -> Any:
        return self.wrapped.__class__

    def __getattr__(self, name: str) -> Any:
        if name == "wrapped":
            raise AttributeError
        return getattr(self.wrapped, name)


def test_an_object_that_cannot_say_its_class_gets_its_attributes_back() -> None:
    wrapper = Wrapper()
    wrapper.__dict__["count"] = 1
    state = take({"wrapper": wrapper})
    wrapper.__dict__["count"] = 2

    undo.undo(state)

    assert wrapper.__dict__ == {"count": 1}
