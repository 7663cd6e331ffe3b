from __future__ import annotations

import collections
import dataclasses
import functools
import io
import random
import re
import sys
import threading
import weakref
from typing import Any, NamedTuple

import numpy
import pytest
import torch
import torch.distributed as dist
from support.host_state import carry, no_saves, take
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.models import device
from torchrelay.shim.capture.records import undo
from torchrelay.shim.capture.records.encode import EncodedNode
from torchrelay.shim.capture.records.rebuild import StateRebuild
from torchrelay.shim.capture.state.filled_queues import FilledQueues
from torchrelay.shim.capture.state.process_settings import ProcessSettings
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.join.destination import Destination
from torchrelay.shim.transfer import TensorInfo


class Holder:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Slotted:
    __slots__ = ("count", "log")

    def __init__(self) -> None:
        self.count, self.log = 0, [0]


class Point(NamedTuple):
    x: float
    trail: list[int]


class Meter:
    def __init__(self) -> None:
        self.window: collections.deque[float] = collections.deque(maxlen=2)


def test_what_training_has_made_gets_this_process_s_own_standard_streams() -> None:
    out, err, text = sys.__stdout__, sys.__stderr__, io.TextIOWrapper(io.BytesIO())
    target: dict[str, Any] = {"kept": Holder(stream=text)}
    carry({"bar": Holder(stream=err, others=[out], text=text), "kept": Holder(stream=out)}, target)
    bar = target["bar"]
    assert bar.stream is err
    assert bar.others == [out]
    assert not hasattr(bar, "text")
    assert target["kept"].stream is out


def test_objects_that_set_up_builds_are_filled_in_place() -> None:
    target: dict[str, Any] = {"log": [], "holder": Holder(values={}), "tensor": torch.zeros(2), "array": numpy.zeros(2)}
    alias, objects = target["tensor"][:1], dict(target)
    source = {
        "log": [1, (2, [3])],
        "holder": Holder(values={"a": 1}, born=[1]),
        "tensor": torch.tensor([1.0, 2.0]),
        "array": numpy.array([3.0, 4.0]),
        "step": 7,
    }
    carry(source, target)
    assert all(target[name] is obj for name, obj in objects.items())
    assert target["log"] == [1, (2, [3])]
    assert vars(target["holder"]) == {"values": {"a": 1}, "born": [1]}
    assert alias.item() == 1.0
    assert target["array"].tolist() == [3.0, 4.0]
    assert target["step"] == 7


@pytest.mark.parametrize("bound", [None, 0, 2])
def test_a_variable_for_the_model_whose_turn_it_is_means_that_one_whatever_it_means_here(bound: int | None) -> None:
    def made() -> dict[str, Any]:
        models = [torch.nn.Linear(2, 2) for _ in range(3)]
        return {"models": models, "optimizers": [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]}

    source, target = made(), made()
    models, optimizers = [*target["models"]], [*target["optimizers"]]
    source |= {"model": source["models"][1], "optimizer": source["optimizers"][1]}
    source["models"][1].tag = "first"
    if bound is not None:
        target |= {"model": models[bound], "optimizer": optimizers[bound]}
    carry(source, target)
    assert all(there is model for there, model in zip(target["models"], models, strict=True))
    assert all(there is optimizer for there, optimizer in zip(target["optimizers"], optimizers, strict=True))
    assert target["model"] is models[1]
    assert target["optimizer"] is optimizers[1]
    assert [getattr(m, "tag", "") for m in models] == ["", "first", ""]
    for model, optimizer in zip(models, optimizers, strict=True):
        assert optimizer.param_groups[0]["params"][0] is model.weight


def test_an_object_loses_attributes_that_the_recorded_one_had_not() -> None:
    target = {"lazy": Holder(logits=1, probs=2), "slotted": Slotted()}
    lazy = target["lazy"]
    bare = Slotted()
    del bare.log
    carry({"lazy": Holder(logits=3), "slotted": bare}, target)
    assert target["lazy"] is lazy
    assert vars(lazy) == {"logits": 3}, "a distribution computes `probs` when it is asked"
    assert not hasattr(target["slotted"], "log")


def test_aliases_and_cycles_stay_what_they_are() -> None:
    shared: list[Any] = [1]
    shared.append(shared)
    target: dict[str, Any] = {"a": [], "b": []}
    carry({"a": shared, "b": (shared, 2), "c": {"d": shared}}, target)
    assert target["a"][1] is target["a"]
    assert target["b"][0] is target["a"]
    assert target["c"]["d"] is target["a"]


def test_containers_born_during_training_are_of_the_same_make() -> None:
    source = {
        "ordered": collections.OrderedDict(b=1, a=2),
        "counter": collections.Counter("aab"),
        "default": collections.defaultdict(list, a=[1]),
        "deque": collections.deque([1, 2], maxlen=2),
        "set": {1, (2, 3)},
        "frozen": frozenset({1}),
        "point": Point(1.0, [1]),
        "bytes": bytearray(b"ab"),
        "random": random.Random(3),
        "generator": torch.Generator().manual_seed(3),
        "loss": torch.tensor(1.5, requires_grad=True),
    }
    expected = random.Random(3).random(), torch.rand(1, generator=torch.Generator().manual_seed(3))
    target: dict[str, Any] = {}
    assert carry(source, target).missing == []
    assert list(target["ordered"].items()) == [("b", 1), ("a", 2)]
    assert target["counter"] == {"a": 2, "b": 1}
    assert type(target["counter"]) is collections.Counter
    target["default"]["new"].append(1)
    assert target["default"] == {"a": [1], "new": [1]}
    target["deque"].append(3)
    assert list(target["deque"]) == [2, 3]
    assert target["set"] == {1, (2, 3)}
    assert target["frozen"] == {1}
    assert target["point"] == Point(1.0, [1])
    assert type(target["point"]) is Point
    assert target["bytes"] == b"ab"
    assert (target["random"].random(), torch.rand(1, generator=target["generator"])) == expected
    assert target["loss"].item() == 1.5
    assert target["loss"].requires_grad


def test_objects_born_in_a_dict_are_made_with_their_windows() -> None:
    meters: collections.defaultdict[str, Meter] = collections.defaultdict(Meter)
    meters["loss"].window.extend([1.0, 2.0])
    target: dict[str, Any] = {"meters": collections.defaultdict(Meter)}
    carry({"meters": meters}, target)
    window = target["meters"]["loss"].window
    window.append(3.0)
    assert list(window) == [2.0, 3.0]


def test_slots_are_filled() -> None:
    source, target = Slotted(), Slotted()
    source.count, source.log = 3, [1, 2]
    log = target.log
    carry({"s": source}, {"s": target})
    assert target.count == 3
    assert target.log is log
    assert log == [1, 2]


def test_keys_and_elements_that_are_objects_are_those_of_this_process() -> None:
    def build() -> dict[str, Any]:
        model = torch.nn.Linear(2, 1)
        weights = {parameter: torch.zeros(1) for parameter in model.parameters()}
        return {
            "model": model,
            "weights": weights,
            "scale": dict.fromkeys(model.parameters(), 1.0),
            "frozen": {model.bias, 1},
        }

    source, target = build(), build()
    for tensor in source["weights"].values():
        tensor += 2
    source["scale"][source["model"].bias] = 0.5
    source["frozen"].add(2)
    kept = list(target["weights"].values())
    carry(source, target)
    assert [tensor.item() for tensor in kept] == [2.0, 2.0]
    assert list(target["weights"]) == list(target["model"].parameters())
    assert list(target["scale"].values()) == [1.0, 0.5]
    assert target["frozen"] == {target["model"].bias, 1, 2}


@dataclasses.dataclass(frozen=True)
class Shape:
    rows: int
    name: str = "x"


def test_keys_and_elements_that_training_adds_are_known_by_what_they_are() -> None:
    keys = [
        numpy.dtype("float32"),
        ((), numpy.dtype("int64"), b"1"),
        re.compile("a+"),
        Shape(3),
        (Shape(4), 1),
        Holder,
        (torch.relu, "fused"),
        Point(1.0, None),  # type: ignore[arg-type]  # a list could be no key
    ]
    target: dict[str, Any] = {"cache": {}, "seen": set()}
    carry({"cache": {key: [place] for place, key in enumerate(keys)}, "seen": set(keys)}, target)
    assert target["cache"] == {key: [place] for place, key in enumerate(keys)}
    assert target["seen"] == set(keys)
    assert Holder in target["seen"]


def test_keys_that_training_adds_are_known_by_where_else_they_stand() -> None:
    def build() -> dict[str, Any]:
        return {"model": torch.nn.Sequential(torch.nn.Linear(2, 1)), "owner": Holder(), "ages": {}, "seen": set()}

    source, target = build(), build()
    model, owner = source["model"], source["owner"]
    source["ages"] |= {model[0].weight: 1, (owner, "first"): [2], model[0]: 3, owner: 4}
    source["seen"] |= {model[0].bias, owner}
    carry(source, target)
    model, owner = target["model"], target["owner"]
    assert target["ages"] == {model[0].weight: 1, (owner, "first"): [2], model[0]: 3, owner: 4}
    assert target["seen"] == {model[0].bias, owner}


def test_a_key_that_training_has_made_and_nobody_else_holds_is_made_or_refused_by_name() -> None:
    target: dict[str, Any] = {"d": {}, "s": {1}}
    carry({"d": {Holder(): 1}, "s": {Holder(), 1}}, target)
    assert [type(key) for key in target["d"]] == [Holder]
    assert {type(element) for element in target["s"]} == {Holder, int}
    with pytest.raises(StateMismatchError, match="d: training has added a key"):
        carry({"d": {iter(bytearray()): 1}}, {"d": {}})
    with pytest.raises(StateMismatchError, match="s: 1 elements of a set"):
        carry({"s": {iter(bytearray()), 1}}, {"s": {1}})


def test_elements_that_nobody_else_holds_are_those_of_this_process() -> None:
    own = Holder()
    target: dict[str, Any] = {"s": {own, 1}, "t": {Holder(), Holder()}}
    carry({"s": {Holder(), 2}, "t": {Holder()}}, target)
    assert target["s"] == {own, 2}
    assert len(target["t"]) == 1


def test_opaque_objects_are_kept_and_local_classes_filled_where_they_are() -> None:
    def build() -> Any:
        class Local:
            def __init__(self) -> None:
                self.count, self.act = 0, torch.relu

        return Local()

    source, target = {"local": build()}, {"local": build()}
    source["local"].count = 5
    there = target["local"]
    carry(source, target)
    assert target["local"] is there
    assert (there.count, there.act) == (5, torch.relu)


def test_an_object_of_a_local_class_that_is_born_during_training_is_missing() -> None:
    class Local:
        pass

    target: dict[str, Any] = {}
    assert carry({"local": Local()}, target).missing == ["attrs 'local'"]
    assert target == {}
    with pytest.raises(StateMismatchError, match="cannot be carried"):
        carry({"log": [Local()]}, {"log": []})


def test_a_tensor_of_another_shape_takes_the_place_of_what_was_there() -> None:
    target = {"t": torch.zeros(2)}
    carry({"t": torch.ones(3)}, target)
    assert target["t"].tolist() == [1.0, 1.0, 1.0]


def test_modules_get_flags_own_attributes_and_buffers() -> None:
    def build() -> torch.nn.Sequential:
        return torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2))

    source, target = build(), build()
    source(torch.randn(8, 2))
    source[0].eval()
    source[1].calls = 3  # type: ignore[assignment]  # declared wider than it is here
    weight = target[1].weight.clone()
    carry({"model": source}, {"model": target})
    assert [module.training for module in target.modules()] == [True, False, True]
    assert target[1].calls == 3
    assert torch.equal(target[0].running_mean, source[0].running_mean)  # type: ignore[arg-type]  # declared wider than it is here
    assert torch.equal(target[1].weight, weight)


def test_another_model_is_refused() -> None:
    with pytest.raises(StateMismatchError, match="2 modules here and had 1"):
        carry({"m": torch.nn.Linear(1, 1)}, {"m": _wrapped()})


def _wrapped() -> torch.nn.Linear:
    linear = torch.nn.Linear(1, 1)
    linear.add_module("extra", torch.nn.ReLU())
    return linear


def test_optimizers_get_groups_and_the_state_that_is_no_tensor() -> None:
    def build() -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
        model = torch.nn.Linear(2, 1)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    (first, source), (second, target) = build(), build()
    source.param_groups[0]["lr"] = 0.5
    source.state[first.bias]["count"] = 4
    source.state[first.bias]["history"] = [1, 2]
    carry({"o": source, "m": first}, {"o": target, "m": second})
    assert target.param_groups[0]["lr"] == 0.5
    assert target.param_groups[0]["params"][0] is second.weight
    assert target.state[second.bias] == {"count": 4, "history": [1, 2]}
    assert second.weight not in target.state


def test_entries_of_optimizer_state_come_in_the_order_in_which_they_were_made() -> None:
    def build() -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
        model = torch.nn.Linear(2, 1)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    (first, source), (second, target) = build(), build()
    source.state[first.bias] = {"count": 4, "direction": torch.ones(1), "history": [1, 2], "mean": torch.zeros(1)}
    source.state[first.weight] = {"mean": torch.zeros(1, 2)}
    carry({"o": source, "m": first}, {"o": target, "m": second})
    assert list(target.state[second.bias]) == ["count", "history"]
    whole = device.whole(state := take({"o": source, "m": first}), state.roots)
    infos = [TensorInfo(path, t.dtype, tuple(t.shape), t.numel() * t.element_size()) for path, t in whole.items()]
    Destination(take({"o": target, "m": second}), (), {}).place(infos)
    assert list(target.state[second.bias]) == ["count", "direction", "history", "mean"]
    assert list(target.state[second.weight]) == ["mean"]


def test_a_frame_that_is_not_there_is_refused() -> None:
    rebuild = StateRebuild([], {}, no_saves, settings=ProcessSettings(), queues=FilledQueues())
    with pytest.raises(StateMismatchError, match=r"runs in train\(\)"):
        rebuild.resolve([EncodedNode(Kind.FRAME, None, -1, (0, "train"), {})])


class Metric(torch.nn.Module):
    """Wraps its own method, as torchmetrics does, and is no module that could be asked for its parts before it is whole."""

    def __init__(self) -> None:
        super().__init__()
        self.total, self.reduce, self.on_step = torch.zeros(1), torch.sum, {"seen": [0]}
        self.compute = self._wrap(self.compute)  # type: ignore[method-assign]  # in its place for this test

    def __hash__(self) -> int:
        return id(self.total)

    def _wrap(self, method: Any) -> Any:
        return lambda: method() * 2

    def compute(self) -> float:
        return float(self.reduce(self.total))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.compute = self._wrap(self.compute)  # type: ignore[method-assign]  # in its place for this test


def test_a_metric_that_training_has_made_is_made_again_with_its_sum() -> None:
    """lightning logs into such: without it an epoch's mean is that of its later part."""
    metric = Metric().eval()
    metric.total, metric.on_step["seen"] = torch.tensor([1.5, 2.0]), [1, 2]
    target: dict[str, Any] = {"results": {}}
    carry({"results": {"loss": metric}}, target).check_complete()
    born = target["results"]["loss"]
    assert (born.compute(), born.on_step, born.training) == (7.0, {"seen": [1, 2]}, False)


def test_what_training_has_made_and_cannot_be_made_again_is_refused() -> None:
    class Inner(torch.nn.Linear):
        pass

    rebuild = carry({"model": Inner(2, 2)}, {})
    with pytest.raises(StateMismatchError, match=r"cannot be made again: 'model' "):
        rebuild.check_complete()
    metric, lock = Metric(), threading.Lock()
    metric.hook = lambda: lock  # type: ignore[assignment]  # as scripts do
    with pytest.raises(StateMismatchError, match="its hook cannot be made again"):
        carry({"metric": metric}, {"other": 1})


class Results(dict[str, Any]):
    def __init__(self, training: bool) -> None:
        super().__init__()
        self.training, self.sizes = training, [1]


@pytest.mark.parametrize("target", [{}, {"results": Results(False)}])
def test_containers_have_attributes_beside_their_items(target: dict[str, Any]) -> None:
    results = Results(True)
    results["a"], results.sizes = 1, [2, 3]
    carry({"results": results}, target)
    assert type(target["results"]) is Results
    assert (dict(target["results"]), vars(target["results"])) == ({"a": 1}, {"training": True, "sizes": [2, 3]})


def test_weak_references_mean_the_same_object_in_another_process() -> None:
    loader = Holder(count=1)
    target: dict[str, Any] = {"loader": Holder(count=0), "in_use": [None]}
    there = target["loader"]
    carry({"loader": loader, "in_use": [None, weakref.ref(loader)]}, target)
    assert target["in_use"][0] is None
    assert target["in_use"][1]() is there


def test_a_weak_reference_that_a_global_holds_comes_over_and_goes_back() -> None:
    def own() -> dict[str, Any]:
        held = [Holder(number=1), Holder(number=2)]
        return {"held": held, "latest": weakref.ref(held[0])}

    source = own()
    state = take(source)
    source["latest"] = weakref.ref(source["held"][1])
    target = own()
    carry(source, target)
    assert target["latest"]() is target["held"][1]
    undo.undo(state)
    assert source["latest"]() is source["held"][0]


def test_weak_references_to_parameters_mean_those_of_this_process() -> None:
    rnn = torch.nn.GRU(2, 2)
    weight, bias = weakref.ref(rnn.weight_hh_l0), weakref.ref(rnn.bias_hh_l0)
    target: dict[str, Any] = {"rnn": torch.nn.GRU(2, 2), "kept": [weakref.ref(torch.zeros(1)), None]}
    there = target["rnn"]
    target["held"] = Holder(bias=weakref.ref(there.bias_hh_l0))
    own = target["held"].bias
    carry({"rnn": rnn, "kept": [weight, bias], "held": Holder(bias=bias)}, target)
    assert target["kept"][0]() is there.weight_hh_l0
    assert target["kept"][1]() is there.bias_hh_l0
    assert target["held"].bias is own


def reduce_by(factor: int, value: int) -> int:
    return factor * value


def test_a_method_that_is_held_twice_is_one_object_again() -> None:
    owner = collections.Counter(a=3)
    method = owner.total
    target: dict[str, Any] = {"owner": collections.Counter()}
    carry({"owner": owner, "new": Holder(bound=method, part=functools.partial(method, 3))}, target)
    new = target["new"]
    assert new.bound.__self__ is target["owner"]
    assert new.part.func is new.bound


def test_functions_methods_and_partials_of_what_training_has_made_are_found_again() -> None:
    owner = collections.Counter(a=3)
    source = {"owner": owner, "new": Holder(by_name=len, bound=owner.total, part=functools.partial(reduce_by, 3))}
    target: dict[str, Any] = {"owner": collections.Counter()}
    carry(source, target)
    new = target["new"]
    assert new.by_name is len
    assert new.bound.__self__ is target["owner"]
    assert (new.bound(), new.part(5)) == (3, 15)


def test_a_metric_of_the_model_that_training_has_logged_is_the_models_own_in_another_process() -> None:
    def build() -> torch.nn.Module:
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), Metric())
        model._metric_attributes = None  # type: ignore[assignment]  # declared wider than it is here
        return model

    source, target = {"model": build(), "logged": {}}, {"model": build(), "logged": {}}
    source["model"]._metric_attributes = {id(source["model"][1]): "1"}  # type: ignore[index]  # declared wider than it is here
    source["logged"]["mae"] = Holder(value=source["model"][1])  # type: ignore[index]  # declared wider than it is here
    carry(source, target)
    assert target["logged"]["mae"].value is target["model"][1]  # type: ignore[index]  # declared wider than it is here
    assert target["model"]._metric_attributes is None, "it is keyed by addresses of another process"


def test_what_torch_averages_models_by_counts_its_steps_in_another_process_as_well() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        source, target = ({"averager": PeriodicModelAverager(period=4)} for _ in range(2))
        source["averager"].step = 7
        there = target["averager"]
        carry(source, target)
        assert target["averager"] is there
        assert there.step == 7
    finally:
        dist.destroy_process_group()
