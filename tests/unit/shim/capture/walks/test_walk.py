from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from support.host_state import take
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.capture.handlers import containers
from torchrelay.shim.capture.state.host_state import Inside
from torchrelay.shim.capture.state.keys import is_value
from torchrelay.shim.capture.values.kinds import Kind, kind_of
from torchrelay.shim.capture.walks import walk


class Holder:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def kinds(namespace: dict[str, Any]) -> list[Kind]:
    return [node.kind for node in take(namespace).nodes[1:] if node.kind is not Kind.SETTINGS]


def test_an_object_has_one_node_by_its_shortest_path() -> None:
    shared: list[int] = []
    state = take({"deep": {"a": {"b": shared}}, "near": shared})
    (number,) = [n for n, node in enumerate(state.nodes) if node.obj is shared]
    assert (state.nodes[number].parent, state.nodes[number].key) == (0, "near")


def test_a_walk_over_objects_that_hold_each_other_ends() -> None:
    first: dict[str, Any] = {}
    first["self"] = first
    holder = Holder(first=first)
    first["holder"] = holder
    assert kinds({"first": first}) == [Kind.DICT, Kind.ATTRS]


def test_what_set_up_makes_anew_is_not_looked_into() -> None:
    lock, union = threading.Lock(), int | None
    found = kinds({"lock": lock, "module": random, "function": take, "type": Holder, "error": ValueError([])})
    assert (found, kinds({"union": union}), take({"union": union}).unknown) == ([], [], [])


def test_plain_values_have_no_nodes_and_mutable_ones_inside_tuples_do() -> None:
    assert kinds({"a": 1, "b": "x", "c": (1, (2.0, None))}) == []
    state = take({"pair": (1, [2])})
    assert [(node.kind, node.key) for node in state.nodes[2:]] == [(Kind.LIST, Inside("pair", 1))]


def test_small_tensors_are_copied_and_large_ones_are_device_state() -> None:
    small, large = torch.ones(3), torch.ones(100_000)
    state = take({"holder": Holder(small=small, large=large)})
    assert list(state.large) == ["script.holder.large"]
    assert state.large["script.holder.large"] is large
    assert [node.kind for node in state.nodes if node.obj is small] == [Kind.TENSOR]


def test_modules_optimizers_and_loaders_are_found_where_they_are() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.ones(4, 2)), generator=torch.Generator(), shuffle=True)
    state = take({"parts": [model, Holder(optimizer=optimizer)], "loader": loader})
    assert state.roots == [model]
    assert state.optimizers == [("script.parts[1].optimizer", optimizer)]
    found = {node.kind for node in state.nodes}
    assert {Kind.PARAM_GROUP, Kind.LOADER, Kind.DATASET, Kind.TORCH_GENERATOR} <= found


def test_data_is_not_progress() -> None:
    rows = [[1.0]] * (containers.BULK_LENGTH + 1)
    data = TensorDataset(torch.ones(100_000))
    state = take({"rows": rows, "data": data})
    assert [node.obj for node in state.nodes[2:]] == [data]
    assert state.large == {}
    long = list(range(containers.BULK_LENGTH + 1))
    assert kinds({"losses": long}) == [Kind.LIST]


def test_what_cannot_be_captured_is_named() -> None:
    class Closed:
        __slots__ = ()

    namespace = {
        "walls": iter({1}),
        "holder": Holder(big=numpy.ones(20_000), objects=numpy.empty(5_000, dtype=object)),
    }
    state = take(namespace)
    assert state.unknown == [
        "script.walls (set_iterator)",
        "script.holder.big (an array larger than 64 KiB)",
        "script.holder.objects (an array of objects)",
    ]
    fixed = numpy.ones(20_000)
    fixed.flags.writeable = False
    assert take({"fixed": fixed, "closed": Closed()}).unknown == ["script.fixed (a read-only array larger than 64 KiB)"]


def test_too_many_objects_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "MAX_NODES", 10)
    with pytest.raises(UnsupportedError, match="more than 10 objects"):
        take({f"name{n}": [n] for n in range(10)})


@pytest.mark.parametrize(
    ("key", "known"), [(1, True), ("a", True), ((1, ("x", 2.0)), True), (Holder(), False), ((1, Holder()), False)]
)
def test_a_key_is_known_elsewhere_by_value_alone(key: Any, known: bool) -> None:
    assert is_value(key) is known


def test_subclasses_are_treated_as_what_they_are() -> None:
    class Log(list):  # type: ignore[type-arg]  # as scripts write it
        pass

    class Net(torch.nn.Linear):
        pass

    assert kind_of(Log) is Kind.LIST
    assert kind_of(Net) is Kind.MODULE
    assert kind_of(type(numpy.float64(1))) is Kind.PLAIN


def test_a_loader_below_a_data_set_is_found_by_it() -> None:
    class Grouped(IterableDataset[Any]):
        def __init__(self, loader: DataLoader[Any]) -> None:
            self.loader = loader

        def __iter__(self) -> Iterator[Any]:
            return iter(self.loader)

    namespace = {"data": Grouped(DataLoader(TensorDataset(torch.arange(4.0))))}
    state = take(namespace)
    assert state.nodes[state.index[id(namespace["data"].loader)]].kind is Kind.LOADER
    namespace["data"].loader = DataLoader(TensorDataset(torch.arange(6.0)))
    assert id(namespace["data"].loader) in take(namespace).index
