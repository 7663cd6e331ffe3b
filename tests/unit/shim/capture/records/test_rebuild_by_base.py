"""Objects come back by their base type's own methods, whatever their classes make of these; constants by value."""

from __future__ import annotations

import array
import collections
import copy
import ctypes
import dataclasses
import datetime
import decimal
import enum
import fractions
import logging
import pathlib
import queue
import re
import threading
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from support.host_state import carry, take

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.records import undo


class Output(collections.OrderedDict[str, Any]):
    """As transformers' ModelOutput: a dict of attributes that forbids most of what a dict can."""

    def __init__(self, **values: Any) -> None:
        super().__init__()
        for name, value in values.items():
            self[name] = value

    def __getitem__(self, key: Any) -> Any:
        return tuple(self.values())[key] if isinstance(key, int) else super().__getitem__(key)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def update(self, *_: Any, **__: Any) -> None:
        raise TypeError("update is forbidden")

    def clear(self) -> None:
        raise TypeError("clear is forbidden")


class Sealed(tuple[Any, ...]):
    """As e3nn's Irreps: a tuple that forbids to be asked for its length, and yields something else than it holds."""

    def __len__(self) -> int:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("it is not gone through")

    def __getitem__(self, *_: Any) -> Any:
        raise TypeError("nothing is taken out of it")


class Frozen(dict[str, Any]):
    def __setitem__(self, *_: Any) -> None:
        raise TypeError("frozen")

    update = clear = __delitem__ = pop = __setitem__  # type: ignore[assignment]  # in their places for this test


class Counted(list[Any]):
    calls = 0

    def __setitem__(self, *args: Any) -> None:
        type(self).calls += 1
        super().__setitem__(*args)

    def __iter__(self) -> Any:
        type(self).calls += 1
        return super().__iter__()


class Loud:
    """Tells lies about itself, and does something whenever it is asked."""

    def __init__(self) -> None:
        object.__setattr__(self, "log", [])
        object.__setattr__(self, "count", 0)

    @property
    def __class__(self) -> Any:  # type: ignore[override]  # as proxies do
        return int

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("read only")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"asked for {name}")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    def __hash__(self) -> int:
        raise AssertionError("hashed")


@dataclasses.dataclass(frozen=True)
class Settings:
    name: str
    seen: list[int]


class Base:
    __slots__ = ("__hidden", "shown")

    def __init__(self) -> None:
        self.__hidden, self.shown = [1], 1

    def hidden(self) -> list[int]:
        return self.__hidden


class Slotted(Base):
    __slots__ = ("extra",)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Mode(enum.Flag):
    A = 1
    B = 2


class Name(str):
    pass


class Pair(NamedTuple):
    left: Any
    right: Any


class Positive(Pair):
    def __new__(cls, left: int) -> Positive:
        return super().__new__(cls, left, -left)


class Task:
    def __init__(self) -> None:
        self.lock, self.again, self.done = threading.Lock(), threading.RLock(), threading.Event()
        self.progress, self.color = 0, Color.RED


class Bar:
    """As a package's class: its first object is made with a lock for all, and no `__init__` is asked for that."""

    lock: threading.Lock | None = None

    def __new__(cls, *args: Any) -> Bar:
        if cls.lock is None:
            cls.lock = threading.Lock()
        return object.__new__(cls)

    def __init__(self, total: int) -> None:
        self.total = total


class Unique:
    """There is one object of it, which `__new__` returns each time."""

    only: Unique | None = None

    def __new__(cls) -> Unique:
        if cls.only is None:
            cls.only = object.__new__(cls)
            cls.only.count = 0
        return cls.only

    count: int


class Account(threading.local):
    """As filelock's context of a lock: each thread that comes to it has it made anew, with what it was made with."""

    def __init__(self, owner: str, *, limit: int) -> None:
        self.owner, self.limit, self.count = owner, limit, 0


class Options(types.SimpleNamespace):
    pass


class Point(ctypes.Structure):
    """What it holds is in memory of its base in C, where no attribute leads."""

    _fields_ = (("x", ctypes.c_int),)


def same_step(space: dict[str, Any], change: Any) -> None:
    """A step that is begun, and taken back."""
    state = take(space)
    change()
    undo.undo(state)


def test_a_dict_that_forbids_update_is_taken_back_and_carried() -> None:
    output = Output(loss=1.0, logits=[1, 2])
    same_step({"o": output}, lambda: (output["logits"].append(3), output.__setitem__("loss", 2.0)))
    assert (output["loss"], output.loss, output["logits"]) == (1.0, 1.0, [1, 2])  # type: ignore[attr-defined]
    for target in ({}, {"o": Output(loss=0.0, old=1)}):
        carry({"o": output}, target)
        assert type(target["o"]) is Output
        assert list(target["o"].items()) == [("loss", 1.0), ("logits", [1, 2])]
        assert target["o"].logits is target["o"]["logits"]


def test_frozen_dicts_and_noisy_lists_are_not_asked_by_their_own_methods() -> None:
    frozen, counted = Frozen(a=[1]), Counted([1, [2]])
    Counted.calls = 0
    same_step({"f": frozen, "c": counted}, lambda: (dict.__setitem__(frozen, "b", 2), list.append(counted, 3)))
    assert (dict(frozen), len(counted)) == ({"a": [1]}, 2)
    target: dict[str, Any] = {"f": Frozen(), "c": Counted()}
    carry({"f": frozen, "c": counted}, target)
    assert (target["f"], len(target["c"])) == ({"a": [1]}, 2)
    assert Counted.calls == 0


def test_an_ordered_dict_keeps_its_own_order() -> None:
    ordered = collections.OrderedDict(a=1, b=2, c=3)
    ordered.move_to_end("a")
    same_step({"o": ordered}, lambda: ordered.move_to_end("b"))
    assert list(ordered) == ["b", "c", "a"]
    target: dict[str, Any] = {"o": collections.OrderedDict(a=1)}
    there = target["o"]
    carry({"o": ordered}, target)
    assert target["o"] is there
    assert list(there) == ["b", "c", "a"]
    there.move_to_end("b")
    assert (list(there), there.popitem()) == (["c", "a", "b"], ("b", 2))


def test_objects_are_not_asked_what_they_are() -> None:
    loud = Loud()

    def change() -> None:
        loud.log.append(1)
        object.__setattr__(loud, "count", 5)

    same_step({"l": loud}, change)
    assert (loud.log, loud.count) == ([], 0)
    object.__setattr__(loud, "count", 7)
    target: dict[str, Any] = {"l": Loud()}
    carry({"l": loud, "born": [loud]}, target)
    assert object.__getattribute__(target["l"], "count") == 7
    assert target["born"][0] is target["l"]


def test_frozen_dataclasses_and_slots_with_private_names() -> None:
    settings, slotted = Settings("a", [1]), Slotted()
    slotted.extra = {"a": 1}

    def change() -> None:
        object.__setattr__(settings, "name", "b")
        slotted.hidden().append(2)
        slotted.shown = 3
        del slotted.extra

    same_step({"s": settings, "t": slotted}, change)
    assert (settings, slotted.hidden(), slotted.shown, slotted.extra) == (Settings("a", [1]), [1], 1, {"a": 1})
    target: dict[str, Any] = {}
    carry({"s": settings, "t": slotted}, target)
    assert target["s"] == settings
    assert (target["t"].hidden(), target["t"].extra) == ([1], {"a": 1})


def test_containers_of_other_makes() -> None:
    class_of = collections.UserDict({"a": 1})
    source = {
        "user": class_of,
        "counts": collections.Counter("abb"),
        "chain": collections.ChainMap({"a": 1}),
        "pair": Positive(2),
        "time": time.gmtime(0),
        "named": torch.return_types.max((torch.ones(1), torch.zeros(1, dtype=torch.int64))),  # type: ignore[attr-defined]
    }
    target: dict[str, Any] = {}
    assert carry(source, target).missing == []
    assert (target["user"]["a"], target["counts"], target["chain"]["a"]) == (1, {"b": 2, "a": 1}, 1)
    assert (type(target["pair"]), target["pair"].right, target["time"]) == (Positive, -2, time.gmtime(0))
    assert target["named"].values.tolist() == [1.0]


@pytest.mark.parametrize(
    "value",
    [
        Color.RED,
        Mode.A | Mode.B,
        Name("a"),
        torch.float16,
        torch.device("cpu"),
        torch.Size([1, 2]),
        torch.channels_last,
        Ellipsis,
        NotImplemented,
        re.compile("a+"),
        datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc),
        pathlib.Path("/a"),
        decimal.Decimal("1.5"),
        fractions.Fraction(1, 3),
        range(3),
        slice(1, 2),
        frozenset({1}),
        1j,
        numpy.float32(1.5),
        numpy.dtype("int8"),
        logging.getLogger("torchrelay.test"),
        list[int],
        int | str,
        array.array("d", [1.0, 2.0]),
        threading,
        torch.distributed.ReduceOp.SUM,
        len,
        pathlib.Path,
    ],
    ids=repr,
)
def test_constants_come_back_by_value_wherever_they_are_kept(value: Any) -> None:
    target: dict[str, Any] = {}
    rebuild = carry({"kept": {"in a dict": value, "in a list": [value], "in a tuple": (value,)}}, target)
    rebuild.check_complete()
    kept = target["kept"]
    assert kept["in a dict"] == kept["in a list"][0] == kept["in a tuple"][0] == value
    assert type(kept["in a dict"]) is type(value)


def test_fresh_locks_stand_where_locks_were() -> None:
    task = Task()
    task.progress, task.color = 3, Color.BLUE
    target: dict[str, Any] = {}
    carry({"tasks": [task]}, target).check_complete()
    (there,) = target["tasks"]
    assert (there.progress, there.color) == (3, Color.BLUE)
    assert there.lock.acquire(blocking=False)
    assert there.again.acquire(blocking=False)
    assert not there.done.is_set()
    own = Task()
    lock = own.lock
    carry({"task": task}, {"task": own})
    assert own.lock is lock


def in_another_thread(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as other:
        return other.submit(call).result()


def plain_local(**values: Any) -> threading.local:
    local = threading.local()
    local.__dict__.update(values)
    return local


def test_what_a_thread_keeps_for_itself_is_taken_back() -> None:
    account, local = Account("a", limit=3), plain_local(depth=1, seen=[1])

    def change() -> None:
        account.count, account.limit, local.depth = 5, 4, 2
        local.seen.append(2)
        local.born = 1
        del account.owner

    same_step({"account": account, "local": local}, change)
    assert vars(account) == {"owner": "a", "limit": 3, "count": 0}
    assert vars(local) == {"depth": 1, "seen": [1]}


def test_what_a_thread_keeps_for_itself_comes_into_what_set_up_has_made() -> None:
    account, local = Account("a", limit=3), plain_local(depth=2, seen=[1])
    account.count = 7
    target = {"account": Account("b", limit=0), "local": plain_local(depth=0)}
    there = dict(target)
    carry({"account": account, "local": local}, target).check_complete()
    assert target == there
    assert (vars(target["account"]), vars(target["local"])) == (vars(account), vars(local))


def test_what_a_thread_keeps_for_itself_is_made_with_what_it_was_made_with() -> None:
    account, local = Account("a", limit=3), plain_local(depth=2)
    account.count = 7
    in_another_thread(lambda: setattr(account, "count", 9))
    target: dict[str, Any] = {"kept": []}
    carry({"kept": [account, local]}, target).check_complete()
    made, other = target["kept"]
    assert (type(made), vars(made)) == (Account, {"owner": "a", "limit": 3, "count": 7})
    assert (type(other), vars(other)) == (threading.local, {"depth": 2})
    assert in_another_thread(lambda: dict(vars(made))) == {"owner": "a", "limit": 3, "count": 0}
    assert in_another_thread(lambda: dict(vars(other))) == {}


def test_what_was_made_with_something_that_does_not_pickle_is_refused() -> None:
    with pytest.raises(StateMismatchError, match="Account"):
        carry({"kept": {"a": Account(memoryview(b"a"), limit=3)}}, {"kept": {}}).check_complete()  # type: ignore[arg-type]


def test_objects_are_made_by_the_base_in_c_that_their_class_has() -> None:
    class_of = types.SimpleNamespace(step=1, seen=[1])
    target: dict[str, Any] = {"kept": []}
    carry({"kept": [class_of, Options(step=2)]}, target).check_complete()
    assert target["kept"] == [class_of, Options(step=2)]
    assert type(target["kept"][1]) is Options


def test_a_class_notes_what_it_notes_when_its_first_object_is_made() -> None:
    source = {"bar": Bar(8)}
    Bar.lock = None  # as in a process in which training has made none
    target: dict[str, Any] = {"bar": None}
    carry(source, target)
    assert target["bar"].total == 8
    assert Bar.lock is not None


def test_an_object_that_a_class_has_already_is_not_taken_for_another_one() -> None:
    kept, other = Unique(), object.__new__(Unique)
    other.count = 3
    target: dict[str, Any] = {"kept": kept, "other": None}
    carry({"kept": kept, "other": other}, target)
    assert target["other"] is not kept
    assert (kept.count, target["other"].count) == (0, 3)


def test_what_a_base_in_c_keeps_of_its_own_is_not_made_empty() -> None:
    with pytest.raises(StateMismatchError, match="Point"):
        carry({"kept": {"a": Point(3)}}, {"kept": {}}).check_complete()


def test_what_pickles_but_cannot_be_put_back_is_refused_once_the_step_has_changed_it() -> None:
    context = decimal.Context(prec=5)
    space = {"a": context}
    state = take(space)
    undo.undo(state)
    context.prec = 6
    with pytest.raises(StateMismatchError, match="Context was changed by the step"):
        undo.undo(state)


def test_what_does_not_pickle_is_named() -> None:
    state = take({"view": memoryview(b"a")})
    assert state.unknown == ["script.view (memoryview)"]
    assert take({"q": queue.SimpleQueue(), "proxy": MappingProxyType({})}).unknown == []


def meters(first: Any) -> collections.defaultdict[str, list[Any]]:
    return collections.defaultdict(lambda: [first])


def test_a_defaultdict_with_a_factory_of_its_own_is_made_with_it() -> None:
    source, target = {"d": {"meters": meters(0)}}, {"d": dict[str, Any]()}
    source["d"]["meters"]["a"].append(1)
    carry(source, target).check_complete()
    assert target["d"]["meters"]["a"] == [0, 1]
    assert target["d"]["meters"]["b"] == [0]


def test_a_defaultdict_is_refused_where_nobody_can_make_its_factory() -> None:
    source = {"d": {"meters": meters(memoryview(b"a"))}}
    with pytest.raises(StateMismatchError, match="defaultdict"):
        carry(source, {"d": {}}).check_complete()
    target: dict[str, Any] = {"d": {"meters": meters(0)}}
    carry(copy.copy(source), target).check_complete()
    assert target["d"]["meters"]["b"] == [0]


def test_a_tuple_is_read_and_made_by_what_it_holds() -> None:
    there: Any = {"kept": Sealed(([1, 2], "a", 3.0)), Sealed(("key", 1)): "by it"}
    here: Any = {"kept": Sealed(([], "b", 4.0)), Sealed(("key", 1)): "other"}
    carry({"held": there}, {"held": here})
    assert type(here["kept"]) is Sealed
    assert tuple.__getitem__(here["kept"], slice(None)) == ([1, 2], "a", 3.0)
    assert list(here.values())[1] == "by it"
