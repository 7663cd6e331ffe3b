"""Reads behind an update of what is written there: told of where a new process could not know what was read."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest
import torch

from torchrelay.shim.adapters import dynamo
from torchrelay.shim.step.updates.late_reads import LateRead, LateReads

NOBODY: Any = None
"""The rest of a step is followed here without an engine."""


@pytest.fixture(autouse=True)
def _nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process may have compiled something."""
    monkeypatch.setattr(dynamo, "compilations", lambda: 0)


def _followed(rest: Callable[[torch.Tensor], object], given: Collection[str] = ()) -> list[str]:
    """Return what is told of one step's rest. It is given the tensor `moment`."""
    moment, told = torch.ones(4), list[str]()
    version = moment._version

    def tell(read: LateRead) -> None:
        assert (read.place.file, read.place.line > 0) == (__file__, True)
        told.append(f"{read.path}: {read.name}")

    reads = LateReads(NOBODY)
    reads.begin(lambda: {"moment": moment})
    rest(moment)
    reads.end(["moment"] if moment._version != version else [], given, lambda paths, size_bytes: False, tell)
    return told


def _read_then_written(moment: torch.Tensor) -> None:
    moment.norm().item()
    moment.mul_(0.5)


def _read_between_writes(moment: torch.Tensor) -> None:
    moment.mul_(0.5)
    moment.norm().item()
    moment.mul_(0.5)


def _written_past_the_count(moment: torch.Tensor) -> None:
    moment.data.mul_(0.5)
    moment.norm().item()


def _read_then_written_past_the_count(moment: torch.Tensor) -> None:
    moment.norm().item()
    moment.data.mul_(0.5)


@pytest.mark.parametrize(
    "rest", [_read_then_written, _read_between_writes, _written_past_the_count, _read_then_written_past_the_count]
)
def test_what_a_new_process_could_not_know_is_told(rest: Callable[[torch.Tensor], object]) -> None:
    assert _followed(rest) == ["moment: item"]


def _written_then_read(moment: torch.Tensor) -> None:
    moment.mul_(0.5)
    moment.add_(1.0)
    moment.norm().item()


def _read_only(moment: torch.Tensor) -> None:
    moment.norm().item()


def _written_only(moment: torch.Tensor) -> None:
    moment.data.mul_(0.5)
    assert moment.shape == (4,)


@pytest.mark.parametrize("rest", [_written_then_read, _read_only, _written_only])
def test_what_is_known_is_not_told(rest: Callable[[torch.Tensor], object]) -> None:
    assert _followed(rest) == []


def test_what_a_new_process_is_given_is_not_told() -> None:
    assert _followed(_read_then_written, given=["moment"]) == []


def test_a_few_steps_are_followed_and_none_once_a_read_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def follow(reads: LateReads, steps: int, rest: Callable[[torch.Tensor], object]) -> list[int]:
        followed, moment = [], torch.ones(4)
        for step in range(1, steps + 1):
            reads.begin(lambda: {"moment": moment})
            followed += [step] if reads.follows() else []
            version = moment._version
            rest(moment)
            late = ["moment"] if moment._version != version else []
            reads.end(late, (), lambda paths, size_bytes: False, lambda read: None)
        return followed

    assert follow(LateReads(NOBODY), 40, _written_then_read) == [1, 2, 3, 4, 8, 16, 32]
    assert follow(LateReads(NOBODY), 40, _read_then_written) == [1]
    monkeypatch.setattr(dynamo, "compilations", lambda: 1)
    assert follow(LateReads(NOBODY), 4, _read_then_written) == []


def test_all_that_was_read_so_is_to_be_copied_as_long_as_it_is_not_much() -> None:
    moments = {"first": torch.ones(4), "second": torch.ones(8)}
    asked, told = list[tuple[set[str], int]](), list[str]()

    def copies(paths: Collection[str], size_bytes: int) -> bool:
        asked.append((set(paths), size_bytes))
        return size_bytes < 48

    reads = LateReads(NOBODY)
    for names in (["first"], ["first", "second"]):
        reads.begin(lambda: moments)
        for name in names:
            _read_then_written(moments[name])
        reads.end(names, (), copies, lambda read: told.append(read.path))
    assert asked == [({"first"}, 16), ({"first", "second"}, 48)]
    assert told == ["first"]
    assert reads.is_found
