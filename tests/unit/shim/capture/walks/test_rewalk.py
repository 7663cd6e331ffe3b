"""A walk that goes on from an earlier one says what a walk from scratch says."""

from __future__ import annotations

import collections
import contextlib
import functools
import random
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from support.host_state import differences, take

from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import encode, undo
from torchrelay.shim.capture.records.encode import REF, TUPLE
from torchrelay.shim.capture.state import shared
from torchrelay.shim.capture.state.change_detection import WalkAnew
from torchrelay.shim.capture.state.host_state import HostState, StateNode
from torchrelay.shim.capture.state.tags import BOUND
from torchrelay.shim.capture.values.device_reads import DeviceReads
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.capture.walks import rewalk
from torchrelay.shim.capture.walks.rewalk import Rewalk
from torchrelay.shim.capture.walks.walk import Walk


class Holder:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Slotted:
    __slots__ = ("__dict__", "a", "b")


def again(namespace: dict[str, Any], base: HostState, trees: ModuleTrees, *, at_gate: bool = False) -> HostState:
    return Rewalk(trees, base, at_gate=at_gate).run([], {"script": namespace})


def described(state: HostState) -> dict[str, Any]:
    """Each node by the way to it, with references as ways."""
    ways = [_way(state, number) for number in range(len(state.nodes))]
    return {
        ways[number]: (node.kind, node.cls, _plain(node.content, ways), node.extra)
        for number, node in enumerate(encode.decode(encode.encode(state)))
        if node.kind is not Kind.GONE
    }


def beside(state: HostState, trees: ModuleTrees) -> dict[str, list[Any]]:
    """What is told of objects beside their nodes."""
    return {
        "large": sorted(state.large),
        "versions": sorted(name for tensor, _, name in state.versions if not trees.is_bound(tensor)),
        "unknown": sorted(state.unknown),
        "iterators": sorted(name for name, _ in state.iterators),
        "data": sorted((path, length) for _, length, path in state.bulk),
    }


def _way(state: HostState, number: int) -> str:
    keys = []
    while number >= 0:
        keys.append(str(state.nodes[number].key))
        number = state.nodes[number].parent
    return "/".join(reversed(keys))


def _plain(value: Any, ways: list[str]) -> Any:
    if type(value) is tuple and value and value[0] == REF:
        return ("at", ways[value[1]])
    if type(value) is tuple and value and value[0] == BOUND:
        return ("bound", ways[value[1]], value[2])
    if type(value) is tuple and value and value[0] == TUPLE:
        return ("tuple", value[1], [_plain(v, ways) for v in value[2]])
    if isinstance(value, dict):
        return {str(k): _plain(v, ways) for k, v in value.items()}
    if type(value) in (list, tuple):
        return [_plain(v, ways) for v in value]
    if isinstance(value, numpy.ndarray):
        return value.tobytes()
    return value


def script() -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))
    optimizer = torch.optim.AdamW(model.parameters())
    return {
        "model": model,
        "wide": torch.nn.Linear(500, 200),
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3),
        "step": 0,
        "loss": torch.zeros(1),
        "history": [],
        "window": collections.deque(maxlen=4),
        "seen": {1, 2},
        "holder": Holder(best=None, counts={"a": 1}, pair=(1, [2])),
        "slotted": Slotted(),
        "generator": torch.Generator().manual_seed(1),
        "python": random.Random(1),
        "numbers": numpy.random.default_rng(1),
        "array": numpy.zeros(3),
        "buffer": bytearray(b"abc"),
        "groups": collections.defaultdict(list),
        "far": {},
    }


def grow(s: dict[str, Any], r: random.Random) -> None:
    s["history"].append(r.random())


def in_table(names: dict[str, Any], chance: random.Random) -> None:
    table = names.get("table")
    if isinstance(table, numpy.ndarray) and table.dtype == object:
        table.reshape(-1)[0] = chance.choice([[chance.random()], names["history"], numpy.ones(2), "plain"])


def reform_table(names: dict[str, Any], chance: random.Random) -> None:
    table = names.get("table")
    if isinstance(table, numpy.ndarray) and table.dtype == object:
        table.shape = chance.choice([(1, 2), (2, 1), (2,)])


def rewire(names: dict[str, Any], chance: random.Random) -> None:
    """Objects that hold each other, directly or in tuples, by other ways than before."""
    nodes = names.setdefault("graph", {f"n{n}": {"own": [n]} for n in range(6)})
    known = [n for n in (*nodes.values(), *names["far"].values()) if type(n) is dict] or [{}]
    holder = chance.choice([*known, names["far"], nodes])
    key, value = f"e{chance.randrange(3)}", chance.choice(known)
    holder.pop(key, None)
    if chance.random() < 0.6:
        holder[key] = chance.choice([value, (0, value), (value, (value, 1))])
    elif nodes is not holder and chance.random() < 0.5:
        nodes.pop(f"n{chance.randrange(6)}", None)


def count_in_optimizer(names: dict[str, Any], chance: random.Random) -> None:
    for parameter in names["model"].parameters():
        values = names["optimizer"].state[parameter]
        values["steps"] = values.get("steps", 0) + 1
        values.setdefault("history", []).append(chance.random())


CHANGES: dict[str, Callable[[dict[str, Any], random.Random], Any]] = {
    "nothing": lambda s, r: None,
    "counter": lambda s, r: s.update(step=s["step"] + 1),
    "new loss": lambda s, r: s.update(loss=torch.full((1,), r.random())),
    "written loss": lambda s, r: s["loss"].add_(1),
    "unseen write": lambda s, r: s["loss"].numpy().__setitem__(0, r.random()),
    "history": grow,
    "long history": lambda s, r: s["history"].extend([r.random()] * 300),
    "history gone": lambda s, r: s["history"].clear(),
    "rewritten history": lambda s, r: s["history"] and s["history"].__setitem__(0, r.random()),
    "window": lambda s, r: s["window"].append([r.random()]),
    "set": lambda s, r: s["seen"].add(r.randrange(50)),
    "dict": lambda s, r: s["holder"].counts.update({r.choice("abc"): r.random()}),
    "nested": lambda s, r: s["holder"].counts.update({r.choice("de"): [r.random(), {"x": [1]}]}),
    "dropped": lambda s, r: s["holder"].counts.pop("d", None),
    "renamed": lambda s, r: s["holder"].counts.update({"f": s["holder"].counts.pop("e", 0)}),
    "in tuple": lambda s, r: s["holder"].pair[1].append(1),
    "new tuple": lambda s, r: setattr(s["holder"], "pair", (r.random(), [3])),
    "kept tensor": lambda s, r: setattr(s["holder"], "best", s["loss"]),
    "kept list": lambda s, r: setattr(s["holder"], "best", s["history"]),
    "forgotten": lambda s, r: setattr(s["holder"], "best", None),
    "own copy": lambda s, r: setattr(s["holder"], "best", {k: v.clone() for k, v in s["model"].state_dict().items()}),
    "swapped": lambda s, r: s.update(history=s["window"], window=s["history"]) if r.random() < 0.1 else None,
    "new attribute": lambda s, r: setattr(s["holder"], f"x{r.randrange(3)}", [r.random()]),
    "attribute gone": lambda s, r: vars(s["holder"]).pop("x1", None),
    "circle": lambda s, r: setattr(s["holder"], "me", s["holder"]),
    "ring": lambda s, r: setattr(s["holder"], "ring", ring()),
    "slot": lambda s, r: setattr(s["slotted"], "a", [r.random()]),
    "slot and field": lambda s, r: (setattr(s["slotted"], "b", 1), setattr(s["slotted"], "c", 2)),
    "generator": lambda s, r: torch.rand(1, generator=s["generator"]),
    "python generator": lambda s, r: s["python"].random(),
    "numpy generator": lambda s, r: s["numbers"].random(),
    "array": lambda s, r: s["array"].__setitem__(0, r.random()),
    "new array": lambda s, r: s.update(array=numpy.ones(r.randrange(1, 4))),
    "bytes": lambda s, r: s["buffer"].append(r.randrange(255)),
    "default": lambda s, r: s["groups"][r.randrange(4)].append(r.random()),
    "mode": lambda s, r: s["model"].train(r.random() < 0.5),
    "dropout": lambda s, r: setattr(s["model"][2], "p", r.random()),
    "module attribute": lambda s, r: setattr(s["model"][0], "note", [r.random()]),
    "forward": lambda s, r: s["model"].train()(torch.randn(4, 4)),
    "learning rate": lambda s, r: s["optimizer"].param_groups[0].update(lr=r.random()),
    "scheduler": lambda s, r: s["scheduler"].__dict__.update(last_epoch=r.randrange(9), _last_lr=[r.random()]),
    "new name": lambda s, r: s.update({f"new{r.randrange(2)}": {"k": [torch.rand(2)]}}),
    "name gone": lambda s, r: s.pop("new0", None),
    "shorter way": lambda s, r: s.update(counts=s["holder"].counts) if r.random() < 0.2 else s.pop("counts", None),
    "batch": lambda s, r: s.update(batch=torch.rand(r.choice([4, 40]), 1000)),
    "batch in a tuple": lambda s, r: s.update(pair=(torch.rand(40, 1000), [r.random()])),
    "batch gone": lambda s, r: s.pop("batch", None),
    "batch by two names": lambda s, r: s.update(aa=s.get("batch"), also=s.get("batch")),
    "batch before": lambda s, r: s.update(previous=s.get("batch"), batch=torch.rand(40, 1000)),
    "loss before": lambda s, r: s.update(previous=s["loss"], loss=torch.rand(1)),
    "loss by two names": lambda s, r: s.update(zz=s["loss"], aa=s["loss"]),
    "batch in an object": lambda s, r: setattr(s["holder"], "best", s.get("batch")),
    "view of a parameter": lambda s, r: s.update(view=s["wide"].weight[1:]),
    "view gone": lambda s, r: s.pop("view", None),
    "free parameter": lambda s, r: s.update(free=torch.nn.Parameter(torch.rand(3))),
    "free parameter gone": lambda s, r: s.pop("free", None),
    "bound parameter": lambda s, r: s.update(one=r.choice([*s["model"].parameters()])),
    "nothing known of it": lambda s, r: s.update(bare=memoryview(b"a")),
    "gone without a trace": lambda s, r: s.pop("bare", None),
    "data": lambda s, r: s.update(data=[[n] for n in range(5000)]),
    "data gone": lambda s, r: s.pop("data", None),
    "large array": lambda s, r: s.update(table=numpy.zeros(20_000)),
    "array of objects": lambda s, r: s.update(table=numpy.array([[{"a": r.random()}, None]], dtype=object)),
    "in an array of objects": in_table,
    "form of an array of objects": reform_table,
    "small array": lambda s, r: s.update(table=numpy.zeros(3)),
    "rewired": rewire,
    "other state of an optimizer": count_in_optimizer,
    "state of an optimizer gone": lambda s, r: s["optimizer"].state.clear(),
    "second model": lambda s, r: s.update(extra=torch.nn.Linear(2, 2)) if r.random() < 0.1 else s.pop("extra", None),
}


def ring() -> list[Any]:
    first: list[Any] = []
    second = [first]
    first.append(second)
    return first


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_is_seen(name: str) -> None:
    chance, trees = random.Random(name), ModuleTrees()
    names = script()
    base = take(names, trees)
    for _ in range(6):
        CHANGES[name](names, chance)
        try:
            base = again(names, base, trees)
        except WalkAnew:
            base = take(names, trees)
        anew = take(names, trees)
        assert described(base) == described(anew)
        assert beside(base, trees) == beside(anew, trees)


def pages_of(elements: int, many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "PAGE", elements)
    monkeypatch.setattr(shared, "_SHIFT", elements.bit_length() - 1)
    monkeypatch.setattr(shared, "_MASK", elements - 1)
    monkeypatch.setattr(shared, "_MANY", many)
    monkeypatch.setattr(shared, "_MOST_ABOVE", 8)


@pytest.mark.parametrize("many", [0, 1 << 30], ids=["copies share", "whole copies"])
def test_any_sequence_of_changes_gives_what_a_walk_from_scratch_gives(
    many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages_of(4, many, monkeypatch)
    went_on = 0
    for seed in range(8):
        chance, trees = random.Random(seed), ModuleTrees()
        names = script()
        base = take(names, trees)
        for _ in range(60):
            done = [chance.choice(list(CHANGES)) for _ in range(chance.randrange(4))]
            for name in done:
                CHANGES[name](names, chance)
            try:
                base = again(names, base, trees)
                went_on += 1
            except WalkAnew:
                base = take(names, trees)
            went_on_with = encode.encode(base)
            assert encode.nodes_in(encode.in_blocks(base)) == [*went_on_with]
            base.takes_over = False
            assert [*went_on_with] == [*encode.encode(base)], (seed, done)
            anew = take(names, trees)
            assert described(base) == described(anew), (seed, done)
            assert beside(base, trees) == beside(anew, trees), (seed, done)
            encode.in_blocks(base)  # for the next walk to take over
    assert went_on > 200


def test_blocks_without_a_change_are_not_pickled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pages_of(2, 0, monkeypatch)
    names, trees = script(), ModuleTrees()
    base = take(names, trees)
    encode.encode(base)
    encode.in_blocks(base)
    names["step"] += 1
    state = again(names, base, trees)
    encode.encode(state)
    encode.in_blocks(state)
    renewed = {number // 2 for number in state.renewed}
    assert {n for n, (a, b) in enumerate(zip(base.blocks, state.blocks, strict=True)) if a is not b} == renewed
    assert len(renewed) < len(state.blocks)


def test_a_large_node_beside_one_that_has_changed_is_not_written_again() -> None:
    names, trees = {"step": 0, "words": {str(n): n for n in range(1000)}}, ModuleTrees()
    base = take(names, trees)
    encode.encode(base)
    before = encode.in_blocks(base)
    names["step"] = 1
    state = again(names, base, trees)
    encode.encode(state)
    after = encode.in_blocks(state)
    assert [a is b for a, b in zip(before, after, strict=True)] == [False, True]
    assert encode.nodes_in(after) == [*state.written]
    assert encode.nodes_in(before) == [*base.written]


class NeverAsked:
    """As arrays, proxies and lazy values are: whatever it is asked that it need not know, it raises."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def _asked(self, *_: Any) -> Any:
        raise AssertionError("asked")

    __eq__ = __ne__ = __bool__ = __len__ = __iter__ = __contains__ = __getattr__ = _asked  # type: ignore[assignment]  # raises
    __hash__ = object.__hash__


def never_asked() -> dict[str, Any]:
    def one() -> NeverAsked:
        return NeverAsked({"array": numpy.zeros(3)})

    kept = one()
    return {
        "step": 0,
        "one": kept,
        "again": [kept, one()],
        "by key": {"a": one(), kept: 1, (kept, 1): [one()]},
        "set": {kept, 1},
        "pair": (one(), numpy.ones(2), [kept]),
        "queue": collections.deque([one()]),
        "bound": functools.partial(max, kept),
        "old": numpy.random.RandomState(1),
    }


def test_what_the_script_keeps_is_not_asked_what_it_is_or_equals() -> None:
    names, trees = never_asked(), ModuleTrees()
    base = take(names, trees)
    encode.encode(base)
    for _ in range(2):
        names["step"] += 1
        names["one"].value["array"] += 1
        names["again"][1] = NeverAsked(3)
        names["set"].add(NeverAsked(2))
        names["old"].random_sample()
        state = again(names, base, trees)
        encode.encode(state)
        assert differences(encode.decode(encode.encode(state)), encode.decode(encode.encode(take(names)))) == []
    undo.undo(base)
    assert (names["step"], len(names["set"]), type(names["again"][1].value)) == (0, 2, dict)
    assert differences(encode.decode(encode.encode(base)), encode.decode(encode.encode(take(names)))) == []


def test_what_did_not_change_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    names, trees = script(), ModuleTrees()
    base = take(names, trees)
    before = encode.encode(base)
    names["step"] += 1
    names["loss"] = torch.ones(1)
    state = again(names, base, trees)
    changed = [node.key for node, before in zip(state.nodes, base.nodes, strict=True) if node is not before]
    assert sorted(changed) == ["loss", "script"]
    assert sorted(state.nodes[number].key for number in state.renewed) == sorted(changed)
    written = []
    monkeypatch.setattr(encode, "pickled", lambda value: written.append(value[3]) or b"anew")
    now = encode.encode(state)
    assert sorted(written) == sorted(changed)
    assert [data for data in now if data != b"anew"] == [
        data for data, node in zip(before, base.nodes, strict=True) if node.key not in changed
    ]


def test_a_state_can_be_gone_back_to_after_others_went_on_from_it() -> None:
    names, trees = script(), ModuleTrees()
    base = take(names, trees)
    expected = described(base)
    for name in ("counter", "new loss", "history", "nested", "window", "scheduler", "dropout", "new attribute"):
        CHANGES[name](names, random.Random(1))
        again(names, base, trees, at_gate=True)
    undo.undo(base)
    names.pop("new1", None)
    assert described(take(names, trees)) == expected


def test_places_of_objects_that_are_gone_are_used_again() -> None:
    names, trees = script(), ModuleTrees()
    base = take(names, trees)
    for _ in range(500):
        names["loss"] = torch.rand(1)
        names["holder"].counts["d"] = [[1.0], [2.0]]
        base = again(names, base, trees)
    assert len(base.nodes) < len(take(names, trees).nodes) + 10


def test_a_list_in_the_place_of_another_takes_over_its_node() -> None:
    names, trees = script(), ModuleTrees()
    base = take(names, trees)
    names["scheduler"]._last_lr, old = [0.25], names["scheduler"]._last_lr
    state = again(names, base, trees)
    number = state.index[id(names["scheduler"]._last_lr)]
    assert number == base.index[id(old)]
    assert state.nodes[number].content == [0.25]
    assert not state.free
    assert id(old) not in state.index
    names["holder"].best = old  # the one that was there is another object now
    later = again(names, state, trees)
    assert described(later) == described(take(names, trees))
    assert later.index[id(old)] != number


def test_a_list_that_another_object_holds_too_keeps_its_node() -> None:
    names, trees = script(), ModuleTrees()
    old = names["scheduler"]._last_lr
    names["slotted"].a = old
    base = take(names, trees)
    names["scheduler"]._last_lr = [0.25]
    try:
        state = again(names, base, trees)
    except WalkAnew:
        state = take(names, trees)
    assert described(state) == described(take(names, trees))
    assert state.nodes[state.index[id(old)]].content == old


IN_EACH_STEP = (
    "batch",
    "batch in a tuple",
    "batch before",
    "batch by two names",
    "loss before",
    "loss by two names",
    "nothing known of it",
    "gone without a trace",
    "free parameter",
    "view of a parameter",
    "other state of an optimizer",
    "rewired",
)


@pytest.mark.parametrize("name", IN_EACH_STEP)
def test_what_steps_make_anew_takes_no_walk_from_scratch(name: str) -> None:
    """Whatever else the script keeps: a walk from scratch looks at all of it."""
    chance, trees = random.Random(name), ModuleTrees()
    names = script()
    CHANGES["batch"](names, chance)
    CHANGES["other state of an optimizer"](names, chance)
    names["graph"] = {f"n{n}": {"own": [n]} for n in range(6)}
    base = take(names, trees)
    for _ in range(6):
        CHANGES[name](names, chance)
        base = again(names, base, trees)
    for _ in range(6):
        CHANGES[name](names, chance)
        again(names, base, trees, at_gate=True)


def test_the_variables_of_a_function_that_is_called_again_are_those_of_the_frame_before() -> None:
    """Each epoch is another call of the function that trains."""

    trees, names = ModuleTrees(), script()
    bases: list[HostState] = []

    def train_one_epoch(numbers: list[int]) -> None:
        batch, best = torch.rand(40, 1000), [*numbers]
        frame = sys._getframe()
        if bases:
            state = Rewalk(trees, bases[0], at_gate=False).run([frame], {"script": names})
            anew = Walk(trees).run([frame], {"script": names})
            assert described(state) == described(anew)
            assert beside(state, trees) == beside(anew, trees)
            assert state.large == {"batch": batch}
            assert state.index[id(frame)] == 0
            best.append(4)
            undo.undo(state)
            assert best == numbers
        bases.append(Walk(trees).run([frame], {"script": names}))
        print(batch, best)  # they are read afterwards

    train_one_epoch([1])
    train_one_epoch([2, 3])


@pytest.mark.parametrize("alias_is_first", [False, True])
@pytest.mark.parametrize("size", [8, 1 << 18])
def test_what_shared_a_buffers_memory_has_its_own_once_another_buffer_is_bound(size: int, alias_is_first: bool) -> None:
    """`state_dict()` in a variable, and `self.center = ...` in the next step."""
    model = torch.nn.Module()
    model.register_buffer("center", torch.zeros(size))
    kept = model.center.detach()
    namespace: dict[str, Any] = {"kept": kept, "model": model} if alias_is_first else {"model": model, "kept": kept}
    trees = ModuleTrees()
    base = take(namespace, trees)
    model.center = torch.ones(size)
    try:
        state = again(namespace, base, trees)
    except WalkAnew:
        state = take(namespace, trees)
    assert described(state) == described(take(namespace))


def test_what_is_on_a_device_is_looked_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device goes on with the step while the host looks at its own objects."""
    trees = ModuleTrees()
    namespace: dict[str, Any] = {"a": torch.zeros(1), "b": [0], "c": torch.zeros(1), "d": [0]}
    base = take(namespace, trees)
    device = SimpleNamespace(is_cuda=True)
    on_device = {base.index[id(namespace[name])] for name in ("a", "c")}
    plain = Rewalk._look_at
    looked_at: list[bool] = []

    def look_at(self: Rewalk, number: int, node: StateNode) -> None:
        looked_at.append(number in on_device)
        plain(self, number, node)

    def contents_of(node: StateNode) -> list[Any]:
        return [device] if base.index.get(id(node.obj)) in on_device else []

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(rewalk, "_contents_of", contents_of)
    monkeypatch.setattr(DeviceReads, "ahead", lambda self, tensors: contextlib.nullcontext(list(tensors)))
    monkeypatch.setattr(Rewalk, "_look_at", look_at)
    for tensor, numbers in ((namespace["a"], namespace["b"]), (namespace["c"], namespace["d"])):
        tensor += 1
        numbers.append(1)
    again(namespace, base, trees)
    assert True in looked_at
    assert looked_at == sorted(looked_at)
    assert looked_at.count(True) == len(on_device)
