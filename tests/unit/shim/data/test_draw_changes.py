from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
from support.host_state import take
from torch.utils.data import DataLoader, Dataset, IterableDataset

from torchrelay.shim.capture.records import undo
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.data.draw_changes import StateBelowData


class Packer:
    def __init__(self) -> None:
        self.lines: list[int] = []
        self.wanted = 3

    def add(self, line: int) -> None:
        self.lines.append(line)
        if len(self.lines) == self.wanted:
            self.lines, self.seen = [], line


class Packed(IterableDataset[int]):
    def __init__(self, names: list[int], packer: Packer) -> None:
        self.packer, self.source = packer, self._names(names)

    @staticmethod
    def _names(names: list[int]) -> Iterator[int]:
        while True:
            names.reverse()
            yield from names

    def __iter__(self) -> Iterator[int]:
        for name in self.source:
            self.packer.add(name)
            yield name


def content(names: list[int], packer: Packer) -> Any:
    return [*names], vars(packer) | {"lines": [*packer.lines]}


def drawn(state: HostState, loader: DataLoader[Any], iterator: Any, times: int = 1) -> list[Any]:
    again = []
    for _ in range(times):
        before = StateBelowData(state, loader, iterator)
        next(iterator)
        again.append(before.done())
    return again


def test_what_a_draw_changes_in_objects_of_the_script_is_changed_again_without_it() -> None:
    names, packer = [1, 2, 3, 4], Packer()
    loader = DataLoader(Packed(names, packer), batch_size=None)
    iterator = iter(loader)
    next(iterator)
    state = take({"names": names, "packer": packer})
    head = content(names, packer)
    after, effects = [], []
    for _ in range(6):
        effects += drawn(state, loader, iterator)
        after.append(content(names, packer))
    assert after[-1] != head
    for _ in range(2):
        undo.undo(state)
        assert content(names, packer) == head
        for again, then in zip(effects, after):
            again()
            assert content(names, packer) == then


def test_what_the_step_itself_has_changed_is_left_to_it() -> None:
    names, packer = [1, 2], Packer()
    loader = DataLoader(Packed(names, packer), batch_size=None)
    iterator = iter(loader)
    next(iterator)
    state = take({"packer": packer})
    packer.loss = 1.5  # type: ignore[attr-defined]  # as a step keeps it on an object that it has
    (again,) = drawn(state, loader, iterator)
    undo.undo(state)
    packer.loss = 2.5  # type: ignore[attr-defined]
    again()
    assert packer.loss == 2.5  # type: ignore[attr-defined]
    assert packer.lines == [2, 1]


class Counting(Dataset[int]):
    def __init__(self, **holders: Any) -> None:
        vars(self).update(holders)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index


def test_what_a_new_container_leads_to_of_the_state_is_left_alone() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.kept: list[Any] = []
            self.counts = {"step": 1}

    def collate(index: int) -> int:
        trainer.kept = [trainer.counts]
        return index

    trainer = Trainer()
    loader = DataLoader([*range(8)], batch_size=None, collate_fn=collate)
    iterator = iter(loader)
    state = take({"trainer": trainer})
    (again,) = drawn(state, loader, iterator)
    undo.undo(state)
    trainer.counts["step"] = 2
    again()
    assert trainer.kept == [{"step": 2}]


@pytest.mark.parametrize("kind", [list, set, deque, dict])
def test_containers_behind_closures_are_found(kind: type) -> None:
    container = kind()

    def note(index: int) -> int:
        if isinstance(container, dict):
            container[index] = index
        else:
            (container.add if isinstance(container, set) else container.append)(index)
        return index

    loader = DataLoader([*range(8)], batch_size=None, collate_fn=note)
    iterator = iter(loader)
    state = take({"container": container})
    effects = drawn(state, loader, iterator, times=3)
    then = container.copy()
    assert len(then) == 3
    undo.undo(state)
    assert not container
    for again in effects:
        again()
    assert container == then


def test_a_data_set_that_leads_to_no_state_costs_no_copy() -> None:
    loader = DataLoader(Counting(items=[1, 2, 3]), batch_size=None)
    state = take({"loader": loader, "other": [1]})
    assert StateBelowData(state, loader, iter(loader))._before == []
