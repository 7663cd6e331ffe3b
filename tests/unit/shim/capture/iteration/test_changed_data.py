"""What a worker has changed in its data set, written for the worker of another process. See test_kept_workers for both together."""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from torchrelay.shim.capture.iteration import changed_data, marks
from torchrelay.shim.script import sites


class Data(Dataset[Any]):
    def __init__(self) -> None:
        self.rows = torch.arange(12.0).reshape(4, 3)
        self.names = [["a"], ["b"]]
        self.tags = {("x", "y"), ("z", "w")}
        self.cache: list[Any] = []
        self.until_used: Any = object
        self.part: Any = None


def looked_at(data: Data) -> dict[marks.Where, marks.Mark]:
    found = marks.of_attributes(data, None)
    assert found is not None
    return found


def carry(old: Data, begun: dict[marks.Where, marks.Mark]) -> Data | None:
    written = changed_data.write([old], begun, looked_at(old))
    if written is None:
        return None
    new = Data()
    if written:
        changed_data.put(written, [new], looked_at(new))
    return new


def test_nothing_is_written_of_a_data_set_that_is_as_it_was() -> None:
    data = Data()
    begun = looked_at(data)
    assert changed_data.write([data], begun, looked_at(data)) == b""


def test_what_was_there_is_the_same_object_in_the_new_worker_and_views_look_into_its_memory() -> None:
    data = Data()
    begun = looked_at(data)
    data.cache += [data.names[1], data.rows[2, 1:], torch.ones(2), data]
    del data.until_used
    new = carry(data, begun)
    assert new is not None
    name, row, own, itself = new.cache
    assert name is new.names[1]
    assert row.data_ptr() == new.rows[2, 1:].data_ptr()
    assert row.tolist() == [7, 8]
    assert own.tolist() == [1, 1]
    assert itself is new
    assert not hasattr(new, "until_used")


def test_changes_that_are_too_large_are_not_carried() -> None:
    data = Data()
    begun = looked_at(data)
    data.cache.append(torch.zeros(changed_data.MOST_BYTES // 4 + 1))
    assert carry(data, begun) is None


def test_nor_are_those_that_lead_to_parts_of_what_has_no_order() -> None:
    data = Data()
    begun = looked_at(data)
    data.cache.append(next(iter(data.tags)))
    assert carry(data, begun) is None


class Staged(Data):
    def __init__(self) -> None:
        super().__init__()
        table = {f"word {i}": i for i in range(20000)}
        recent = [0] * 2000
        self.stages = {"lock": threading.Lock(), "table": table, "recent": recent, "by": lambda x: x + 1, "seen": 0}


def carry_stages(change: Callable[[Staged], object]) -> Staged | None:
    old, new = Staged(), Staged()
    begun = looked_at(old)
    parts = changed_data.told_of_parts(begun)
    change(old)
    written = changed_data.write([old], begun, looked_at(old), (), parts)
    if written is None:
        return None
    table = new.stages["table"]
    changed_data.put(written, [new], looked_at(new))
    assert new.stages["table"] is table
    return new


def test_parts_that_are_as_they_were_are_not_written_where_something_beside_them_has_changed() -> None:
    new = carry_stages(lambda data: data.stages.update(seen=3))
    assert new is not None
    assert new.stages["seen"] == 3
    assert new.stages["by"](1) == 2
    assert not new.stages["lock"].locked()


def test_a_long_list_whose_items_have_changed_is_written() -> None:
    def change(data: Staged) -> None:
        data.stages["seen"] = 3
        data.stages["recent"][7] = 5

    new = carry_stages(change)
    assert new is not None
    assert new.stages["recent"][7] == 5


def test_a_function_with_variables_and_another_lock_are_not_carried() -> None:
    assert carry_stages(lambda data: data.stages.update(by=lambda x: (x, data))) is None
    assert carry_stages(lambda data: data.stages.update(lock=threading.Lock())) is None


def test_nor_is_a_collate_function_that_has_changed() -> None:
    data, collate = Data(), {"calls": [0]}
    before = marks.of_attributes(data, collate)
    collate["calls"][0] += 1
    after = marks.of_attributes(data, collate)
    assert before is not None
    assert after is not None
    assert changed_data.write([data], before, after) is None


@pytest.fixture
def made_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], ModuleType]]:
    """Make a module of the script, as each worker has it when it begins."""

    def made(name: str = "of_script") -> ModuleType:
        module = ModuleType(name)
        module.__file__ = f"{name}.py"
        sys.modules[name] = module
        vars(module).update(
            rng=random.Random(1),
            own=torch.Generator(),
            counts=Counter(a=3),
            lists=defaultdict(list),
            order=OrderedDict(x=1, y=2),
            latest=deque([1], maxlen=2),
            held={},
        )
        module.also_held = module.held
        return module

    monkeypatch.setattr(sites, "INSTRUMENTED_FILES", {"of_script.py", "later.py"})
    yield made
    for name in ("of_script", "later"):
        sys.modules.pop(name, None)


def carry_all(made: Callable[[], ModuleType], change: Callable[[ModuleType, Data], object]) -> tuple[Any, Data] | None:
    old, data = made(), Data()
    begun = {**looked_at(data), **marks.of_variables([data])}
    change(old, data)
    written = changed_data.write([data], begun, {**looked_at(data), **marks.of_variables([data])})
    if written is None:
        return None
    sys.modules.pop("later", None)
    new, other = made(), Data()
    changed_data.put(written, [other], {**looked_at(other), **marks.of_variables([other])})
    return new, other


def test_containers_of_each_class_have_the_same_content(made_module: Callable[[], ModuleType]) -> None:
    def change(old: Any, _: Data) -> None:
        old.counts.update("aab")
        old.lists["k"].append(1)
        old.order.move_to_end("x")
        old.latest += [2, 3]
        old.held[1] = 2

    found = carry_all(made_module, change)
    assert found is not None
    new, _ = found
    assert new.counts == {"a": 5, "b": 1}
    assert new.lists["k"] == [1]
    assert new.lists["j"] == []
    assert [*new.order] == ["y", "x"]
    assert [*new.latest] == [2, 3]
    assert new.latest.maxlen == 2
    assert new.held == {1: 2}
    assert new.also_held is new.held


def test_generators_are_the_same_objects_wherever_they_are_held(made_module: Callable[[], ModuleType]) -> None:
    def change(old: Any, data: Data) -> None:
        data.own = random.Random(2)  # type: ignore[attr-defined]
        old.held.update(rng=old.rng, own=old.own, draw=random.random)
        data.cache.append(old.rng)
        old.rng.random()
        torch.rand(1, generator=old.own)

    found = carry_all(made_module, change)
    assert found is not None
    new, other = found
    assert new.held["rng"] is new.rng is other.cache[0]
    assert new.held["own"] is new.own
    assert new.held["draw"] == random.random


def test_a_tensor_that_is_held_twice_is_one_and_two_with_the_same_memory_are_not_carried(
    made_module: Callable[[], ModuleType],
) -> None:
    shared = torch.zeros(2)

    def hold_twice(old: Any, data: Data) -> None:
        old.held.update(a=shared, b=[shared], c=torch.ones(1))
        data.cache.append(shared)

    found = carry_all(made_module, hold_twice)
    assert found is not None
    new, other = found
    assert new.held["a"] is new.held["b"][0] is other.cache[0]
    assert new.held["a"].tolist() == [0, 0]
    assert new.held["c"].tolist() == [1]
    assert carry_all(made_module, lambda old, _: old.held.update(a=shared, b=shared[1:])) is None


def test_what_draws_from_the_processs_generators_is_no_change(made_module: Callable[[], ModuleType]) -> None:
    module: Any = made_module()
    del module.own  # told anew each time
    module.draw, module.draw_int = random.random, random.randint
    begun = marks.of_variables()
    random.random()
    assert changed_data.write([], begun, marks.of_variables()) == b""


class WithCount(random.Random):
    drawn = 0


def test_generators_with_more_than_a_state_and_modules_that_come_later_are_not_carried(
    made_module: Callable[..., ModuleType],
) -> None:
    def made() -> ModuleType:
        module = made_module()
        module.counted = WithCount(3)
        return module

    def count(old: Any, _: Data) -> None:
        old.counted.drawn = 1
        old.counted.random()

    def import_one(_: Any, __: Data) -> None:
        later = ModuleType("later")
        later.__file__ = "later.py"
        later.size = 3
        sys.modules["later"] = later

    assert carry_all(made, count) is None
    assert carry_all(made, import_one) is None


def test_what_one_attribute_leads_to_is_written_with_the_content_of_the_scripts_containers(
    made_module: Callable[[], ModuleType],
) -> None:
    """It is told of a moment, and what variables lead to may be of another one where it is read."""
    module: Any = made_module()
    module.held[1] = 2
    written = changed_data.written(module.held, [], 1000)
    assert written is not None
    module.held.clear()
    assert changed_data.read(written, []) == {1: 2}


class OfScript:
    """An object with a lock, which cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.items: dict[int, int] = {}


class OfPackage(OfScript):
    """It stands for a client of a service."""


def test_what_changes_beside_a_lock_is_seen(
    made_module: Callable[[], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sites, "INSTRUMENTED_FILES", {"of_script.py", __file__})
    monkeypatch.setattr(OfPackage, "__module__", "queue")

    def made() -> ModuleType:
        module = made_module()
        vars(module).update(state={"lock": threading.Lock(), "n": 0}, cache=OfScript(), client=OfPackage())
        return module

    for change, is_seen in (
        (lambda module: module.state.update(n=1), True),
        (lambda module: module.cache.items.update({1: 2}), True),
        (lambda module: module.client.items.update({1: 2}), False),
        (lambda module: None, False),
    ):
        module: Any = made()
        del module.own
        begun = marks.of_variables()
        change(module)
        assert changed_data.write([], begun, marks.of_variables()) == (None if is_seen else b"")
