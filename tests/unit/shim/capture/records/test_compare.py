"""What tells that a rank is not where it says it is, in words that lead to the place."""

from __future__ import annotations

import collections
import functools
import pickle
from typing import Any

import numpy
import pytest
import torch
from support.host_state import carry, differences, take

from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records.compare import MAX_DIFFERENCES
from torchrelay.shim.capture.records.difference import Difference
from torchrelay.shim.capture.records.encode import decode, encode, encode_whole
from torchrelay.shim.capture.records.set_up_trees import begin_set_up
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.values import small
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.capture.values.small import SMALL_BYTES


class Holder:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Center(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(4))
        self.count = 0
        self.shape = (4, (1, 2))


def compared(then: dict[str, Any], now: dict[str, Any]) -> list[Difference]:
    return differences(decode(encode(take(then))), decode(encode(take(now))))


def names() -> dict[str, Any]:
    shared = Holder(total=1.5, log=[1, 2])
    return {
        "trainer": Holder(meters={"loss": shared}, best=None, place=(1, shared)),
        "same": shared,
        "window": collections.deque([1.0], maxlen=3),
        "seen": {1, 2},
        "order": collections.OrderedDict(a=1, b=2),
        "array": numpy.arange(3.0),
        "small": torch.arange(3.0),
        "large": torch.zeros(1 << 16),
        "model": torch.nn.Sequential(Center(), torch.nn.BatchNorm1d(4)),
        "generator": torch.Generator(),
        "history": [float(i) for i in range(2000)],
        "flag": True,
    }


def test_equal_states_have_no_difference_whatever_the_numbers_of_their_nodes() -> None:
    then, now = names(), names()
    reordered = dict(sorted(now.items()))
    assert compared(then, reordered) == []


@pytest.mark.parametrize(
    ("change", "path", "was", "now"),
    [
        (lambda n: setattr(n["same"], "total", 2.5), "script.same.total", "1.5", "2.5"),
        (lambda n: n["same"].log.append(3), "script.same.log", "of 2 entries", "of 3"),
        (lambda n: setattr(n["same"], "total", 2), "script.same.total", "1.5", "2"),
        (lambda n: setattr(n["trainer"], "born", 1), "script.trainer.born", "not there", "1"),
        (lambda n: delattr(n["trainer"], "best"), "script.trainer.best", "None", "not there"),
        (lambda n: n["window"].append(2.0), "script.window", "of 1 entries", "of 2"),
        (lambda n: n["seen"].add(3), "script.seen", "of type set", "of type set"),
        (lambda n: n["history"].append(0.0), "script.history", "of 2000 entries", "of 2001"),
        (lambda n: n.update(flag=1), "script.flag", "True", "1"),
        (lambda n: setattr(n["model"][0], "count", 1), "script.model.0.count".replace(".0", "['0']"), "0", "1"),
    ],
)
def test_a_difference_is_named_as_the_script_would_write_it(change: Any, path: str, was: str, now: str) -> None:
    then, other = names(), names()
    change(other)
    found = compared(then, other)
    assert [(d.path, d.was, d.now) for d in found] == [(path, was, now)]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda n: n["small"].add_(1), "script.small"),
        (lambda n: n["array"].__setitem__(0, 7.0), "script.array"),
        (lambda n: n["order"].move_to_end("a"), "script.order"),
        (lambda n: n["generator"].manual_seed(1), "script.generator"),
        (lambda n: n["model"][1].running_mean.add_(1), "script.model['1'].running_mean"),
        (lambda n: setattr(n["model"][0], "center", torch.ones(4)), "script.model['0'].center"),
        (lambda n: n["model"].eval(), "script.model.training"),
        (lambda n: n.update(large=torch.zeros(1 << 17)), "script.large"),
    ],
)
def test_content_is_compared_bit_by_bit(change: Any, path: str) -> None:
    then, other = names(), names()
    change(other)
    assert [d.path for d in compared(then, other)] == [path]


@pytest.mark.parametrize(("change", "found"), [(0.0, []), (1.0, ["script.large"])])
def test_a_large_tensor_that_a_gate_s_journal_has_by_value_is_compared_by_content(
    change: float, found: list[str]
) -> None:
    large = torch.arange(SMALL_BYTES, dtype=torch.float32)
    then = decode(encode_whole(take({"large": large})))
    then = [n._replace(content=small.take(large)) if n.kind is Kind.TENSOR else n for n in then]
    now = take({"large": large + change})
    read = differences(then, decode(encode_whole(now)), read=lambda number: small.take(now.nodes[number].obj))
    assert [d.path for d in read] == found


def test_an_object_that_two_places_had_in_common_has_to_be_one_object_again() -> None:
    then, other = names(), names()
    other["trainer"].meters["loss"] = Holder(total=1.5, log=[1, 2])
    found = compared(then, other)
    assert found, "equal content is not enough"
    assert any("another object" in str(d) for d in found)


def test_the_same_process_has_to_have_the_very_objects_that_it_had() -> None:
    namespace = names()
    then = take(namespace)
    namespace["trainer"].meters["loss"].log = [1, 2]
    now = take(namespace)

    def same(a: int, b: int) -> bool:
        return then.nodes[a].obj is now.nodes[b].obj

    assert differences(decode(encode(then)), decode(encode(now))) == []
    found = differences(decode(encode(then)), decode(encode(now)), same=same)
    assert [d.path for d in found] == ["script.same.log"]


def test_a_journal_that_holds_the_difference_to_set_up_is_compared_as_a_whole() -> None:
    trees = ModuleTrees()
    namespace: dict[str, Any] = {"model": Center()}
    set_up = begin_set_up(take(namespace, trees))
    namespace["model"].count = 3
    journal = decode(encode(take(namespace, trees)))
    assert journal[2].content[0] == 0, "or the journal has all of the tree itself"
    assert differences(journal, whole(take(namespace)), set_up) == []
    namespace["model"].center.add_(1)
    assert [d.path for d in differences(journal, whole(take(namespace)), set_up)] == ["script.model.center"]


def whole(state: HostState) -> list[Any]:
    return decode(encode_whole(state))


def test_what_a_journal_was_put_into_is_equal_to_it_afterwards() -> None:
    lost, joiner = names(), names()
    lost["same"].total = 9.0
    lost["model"][1].running_var.mul_(2)
    lost["history"].append(1.0)
    written = pickle.dumps(encode(take(lost)))
    assert differences(decode(pickle.loads(written)), whole(take(joiner)))
    carry(lost, joiner)
    assert differences(decode(pickle.loads(written)), whole(take(joiner))) == []


def test_not_all_of_very_many_differences_are_looked_for() -> None:
    then: dict[str, Any] = {f"name{n}": n for n in range(100)}
    now: dict[str, Any] = {f"name{n}": n + 1 for n in range(100)}
    assert len(compared(then, now)) == MAX_DIFFERENCES


def test_more_variables_than_were_recorded_are_no_difference() -> None:
    assert compared({"a": 1}, {"a": 1, "b": 2}) == []
    assert [str(d) for d in compared({"a": 1, "b": 2}, {"a": 1})] == ["script.b was 2 and is not there"]


class Rows(torch.utils.data.Dataset[int]):
    def __init__(self) -> None:
        self.rows = [1, 2]

    def __getitem__(self, index: int) -> int:
        return self.rows[index]

    def __len__(self) -> int:
        return 2


class Trainer:
    """Its evaluation makes a loader anew, and binds how results are gathered."""

    def __init__(self) -> None:
        self.meters: dict[str, float] = {}
        self.loaders: list[Any] = [Shard(torch.utils.data.DataLoader(Rows()))]
        self.eval_loader: Any = None
        self.eval_iterator: Any = None
        self.eval_data: Any = None
        self.gather: Any = functools.partial(self.gathered, all_ranks=False)
        self.describe: Any = None

    def gathered(self, value: float, *, all_ranks: bool = True) -> float:
        return value

    def evaluate(self) -> None:
        self.eval_data = Rows()
        loader = torch.utils.data.DataLoader(self.eval_data)
        self.eval_loader, self.eval_iterator = Shard(loader), iter(loader)
        self.loaders.append(self.eval_loader)
        self.gather = self.gathered
        self.describe = loader.dataset.__len__
        self.meters["accuracy"] = 0.5


class Shard:
    def __init__(self, base: Any) -> None:
        self.base, self.drawn = base, 0


def arrived(lost: dict[str, Any], joiner: dict[str, Any]) -> list[Difference]:
    """What a new process is found to lack that has taken in what the lost rank held."""
    left = carry(lost, joiner).left
    return differences(decode(encode(take(lost))), whole(take(joiner)), left=left)


def test_what_an_evaluation_makes_anew_for_each_use_is_no_difference() -> None:
    lost, joiner = {"trainer": Trainer()}, {"trainer": Trainer()}
    lost["trainer"].evaluate()
    assert arrived(lost, joiner) == []
    there = joiner["trainer"]
    assert there.meters == {"accuracy": 0.5}
    assert there.gather == there.gathered, "what training has bound anew is carried"
    assert there.eval_loader is there.loaders[1]
    assert not hasattr(there.eval_loader, "base"), "or loaders are carried, and have to be compared"


def test_what_hangs_on_something_that_is_not_carried_is_still_compared_where_it_is_carried_itself() -> None:
    lost, joiner = {"trainer": Trainer()}, {"trainer": Trainer()}
    lost["trainer"].evaluate()
    left = carry(lost, joiner).left
    joiner["trainer"].eval_loader.drawn = 7
    joiner["trainer"].meters["accuracy"] = 0.25
    found = differences(decode(encode(take(lost))), whole(take(joiner)), left=left)
    assert sorted(d.path for d in found) == [
        "script.trainer.eval_loader.drawn",
        "script.trainer.meters['accuracy']",
    ]


def test_what_should_have_been_carried_is_a_difference_wherever_it_is_missing() -> None:
    lost, joiner = {"trainer": Trainer()}, {"trainer": Trainer()}
    lost["trainer"].evaluate()
    nodes, now = decode(encode(take(lost))), whole(take(joiner))
    found = {d.path for d in differences(nodes, now)}
    assert {"script.trainer.eval_loader", "script.trainer.gather", "script.trainer.loaders"} <= found


def test_two_objects_that_found_one_in_their_places_are_two_again() -> None:
    """As after a second evaluation, in a process that was led through the first one."""
    lost, joiner = {"trainer": Trainer()}, {"trainer": Trainer()}
    lost["trainer"].evaluate()
    assert arrived(lost, joiner) == []
    lost["trainer"].evaluate()
    lost["trainer"].loaders[1].drawn = 3
    assert arrived(lost, joiner) == []
    there = joiner["trainer"]
    assert [shard.drawn for shard in there.loaders] == [0, 3, 0]
    assert there.eval_loader is there.loaders[2]


def test_a_method_is_carried_where_training_has_bound_another_one() -> None:
    lost, joiner = {"trainer": Trainer()}, {"trainer": Trainer()}
    lost["trainer"].gather = functools.partial(lost["trainer"].gathered, all_ranks=True)
    lost["trainer"].eval_data = lost["trainer"].evaluate
    own = joiner["trainer"].describe = joiner["trainer"].gathered
    lost["trainer"].describe = lost["trainer"].gathered
    assert arrived(lost, joiner) == []
    assert joiner["trainer"].gather.keywords == {"all_ranks": True}
    assert joiner["trainer"].eval_data == joiner["trainer"].evaluate
    assert joiner["trainer"].describe is own, "one that is the same is kept"
