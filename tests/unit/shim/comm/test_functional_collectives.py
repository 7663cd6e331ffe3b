"""Seen on torch 2.13."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.failing_guard import FAILING

from torchrelay.shim.adapters.process_groups import functional
from torchrelay.shim.comm.finished import FinishedCollective
from torchrelay.shim.comm.functional_collectives import FunctionalCollectives


class FakeEngine:
    guard = FAILING

    def __init__(self) -> None:
        self.now, self.behind = "record", False
        self.recorded: list[FinishedCollective] = []
        self.answers: list[FinishedCollective] = []
        self.replays: list[FinishedCollective] = []
        self.interruptions = self.begun = self.confirmed = 0
        self.garbage: list[RuntimeError] = []
        """What `confirm` has to say, each once: the result is none."""
        self.for_good: list[RuntimeError] = []

    def mode(self) -> str:
        return self.now

    def behind_gate(self) -> bool:
        return self.behind

    def collective_begins(self) -> None:
        self.begun += 1

    def caught_up(self, group: str) -> bool:
        return False

    def answer(self, name: str, group: str, *, without_result: bool = False) -> FinishedCollective:
        return self.answers.pop(0)

    def replayed(self, name: str, group: str, *, without_result: bool = False) -> FinishedCollective | None:
        return self.replays.pop(0) if self.replays else None

    def record(self, entry: FinishedCollective) -> None:
        self.recorded.append(entry)

    def interrupted(self, error: RuntimeError) -> None:
        self.interruptions += 1

    def interrupted_for_good(self, error: RuntimeError) -> None:
        self.for_good.append(error)

    def confirm(self) -> None:
        self.confirmed += 1
        if self.garbage:
            raise self.garbage.pop()

    def waiting(self, on: bool) -> None:
        pass


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    found = importlib.import_module("torch.distributed._functional_collectives")
    for name in (*functional.NAMES, functional.WAIT):
        monkeypatch.setattr(found, name, getattr(found, name))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield found
    dist.destroy_process_group()


@pytest.fixture
def engine(module: ModuleType) -> FakeEngine:
    made = FakeEngine()
    FunctionalCollectives(module, lambda: made).install()  # type: ignore[arg-type, return-value]  # a stand-in
    return made


def reduce(module: ModuleType, value: float) -> float:
    return float(module.all_reduce(torch.tensor([value]), "sum", dist.group.WORLD))


def test_a_result_that_the_script_asks_for_is_recorded_and_answers_the_same_call(
    module: ModuleType, engine: FakeEngine
) -> None:
    assert reduce(module, 3.0) == 3.0
    (entry,) = engine.recorded
    assert (entry.name, entry.group) == ("functional.all_reduce", dist.group.WORLD.group_name)  # type: ignore[union-attr]  # there is one
    engine.now, engine.answers = "answer", [entry]
    assert reduce(module, 0.0) == 3.0


def test_what_torch_calls_by_itself_is_left_alone_before_the_gate_and_recorded_after_it(
    module: ModuleType, engine: FakeEngine
) -> None:
    by_torch: dict[str, Any] = {"__name__": "torch.distributed.tensor"}
    exec("def reduce_here(m, t, g):\n    return m.all_reduce(t, 'sum', g)", by_torch)

    def reduce_here(m: ModuleType) -> Any:
        return by_torch["reduce_here"](m, torch.ones(1), dist.group.WORLD)

    reduce_here(module)
    assert engine.recorded == []
    engine.now = "repeat"
    reduce_here(module)
    assert [entry.name for entry in engine.recorded] == ["functional.all_reduce"]


def test_past_the_gate_a_broken_one_is_repeated(
    module: ModuleType, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [RuntimeError("Connection closed by peer")]

    def complete(result: torch.Tensor) -> torch.Tensor:
        if failures:
            raise failures.pop()
        return result

    monkeypatch.setattr(functional, "complete", complete)
    engine.now = "repeat"
    assert reduce(module, 5.0) == 5.0
    assert engine.interruptions == 1
    assert len(engine.recorded) == 1


def test_what_peers_have_done_already_is_taken_from_their_record(module: ModuleType, engine: FakeEngine) -> None:
    reduce(module, 7.0)
    engine.now, engine.replays = "repeat", list(engine.recorded)
    assert reduce(module, 0.0) == 7.0
    assert len(engine.recorded) == 2


def test_a_compiler_is_shown_the_originals(
    module: ModuleType, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    module.broadcast(torch.ones(1), 0, dist.group.WORLD)
    assert engine.recorded == []


def test_every_name_is_one_that_torch_has(module: ModuleType) -> None:
    assert [name for name in (*functional.NAMES, functional.WAIT) if not hasattr(module, name)] == []


@pytest.mark.parametrize("mode", ["record", "repeat"])
def test_a_result_that_turns_out_to_be_garbage_is_not_recorded_and_asked_for_again(
    mode: str, module: ModuleType, engine: FakeEngine
) -> None:
    """On a device an aborted call returns as if nothing were wrong."""
    engine.now, engine.garbage = mode, [RuntimeError("Connection closed: generation 0 was broken")]
    assert reduce(module, 5.0) == 5.0
    assert (engine.interruptions, engine.confirmed, len(engine.recorded)) == (1, 2, 1)


def test_a_result_that_was_asked_for_before_the_gate_is_confirmed_where_it_is_waited_for_behind_it(
    module: ModuleType, engine: FakeEngine
) -> None:
    broken = RuntimeError("Connection closed: generation 0 was broken")
    engine.now = "record"
    module.wait_tensor(torch.ones(1))
    assert engine.confirmed == 0
    engine.now, engine.garbage = "repeat", [broken]
    module.wait_tensor(torch.ones(1))
    assert engine.for_good == [broken]
