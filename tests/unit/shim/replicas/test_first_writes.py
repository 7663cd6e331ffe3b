"""What training writes to for the first time, and when ranks compare contents for it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from support.host_state import take

from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.replicas.first_writes import FirstWrites, paths_of


class Script:
    def __init__(self) -> None:
        self.model = torch.nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.holds: dict[str, Any] = {"memory": torch.zeros(20_000), "other": torch.zeros(20_000)}
        self.trees = ModuleTrees()
        self.writes = FirstWrites()
        self.boundary = -1
        self.kept: list[str] = []

    def head(self) -> dict[str, int]:
        self.boundary += 1
        state = take({"model": self.model, "o": self.optimizer, **self.holds}, self.trees)
        self.writes.at_boundary(state, self.boundary, lambda: self.kept)
        return dict(self.writes.unproven())


@pytest.fixture
def script() -> Script:
    made = Script()
    made.head()
    return made


def memory(script: Script) -> None:
    script.holds["memory"][0] = 1


def another(script: Script) -> None:
    script.holds["memory"] = torch.ones(20_000)


def weight(script: Script) -> None:
    with torch.no_grad():
        script.model.weight.add_(1)


def rebound(script: Script) -> None:
    script.model.weight = torch.nn.Parameter(torch.ones(2, 3))


def made(script: Script) -> None:
    script.holds["best"] = torch.ones(20_000)


def grown(script: Script) -> None:
    script.model.register_parameter("more", torch.nn.Parameter(torch.ones(4)))


def momentum(script: Script) -> None:
    script.optimizer.state[script.model.bias]["momentum_buffer"] = torch.zeros(2)


@pytest.mark.parametrize(
    ("write", "path"),
    [
        (memory, "value.script.memory"),
        (another, "value.script.memory"),
        (made, "value.script.best"),
        (weight, "module0.weight"),
        (rebound, "module0.weight"),
        (grown, "module0.more"),
        (momentum, "optimizer0.1.momentum_buffer"),
    ],
)
def test_the_first_write_is_noticed_and_contents_are_to_be_compared(write: Any, path: str, script: Script) -> None:
    assert (script.head(), script.writes.asks) == ({}, False)
    write(script)
    assert (script.head(), script.writes.asks) == ({path: 2}, True)
    assert (script.head(), script.writes.asks) == ({path: 2}, False)
    script.writes.compared()
    assert script.head() == {}


def test_a_second_write_is_not(script: Script) -> None:
    for step in (1, 2):
        memory(script)
        weight(script)
        assert script.head() == {"value.script.memory": 1, "module0.weight": 1}, step
    script.writes.compared()
    memory(script)
    assert script.head() == {}


def test_what_is_there_at_the_first_boundary_is_not_new() -> None:
    assert (Script().head(), FirstWrites().unproven()) == ({}, ())


def test_what_a_wrapper_keeps_equal_does_not_count(script: Script) -> None:
    script.kept = ["module0.weight"]
    weight(script)
    memory(script)
    assert script.head() == {"value.script.memory": 1}


def test_a_write_in_front_of_the_gate_counts_there(script: Script) -> None:
    memory(script)
    assert script.writes.at_gate(1, lambda: ()) == (("value.script.memory", 1),)
    assert script.writes.at_gate(1, lambda: ["value.script.memory"]) == ()
    assert script.head() == {"value.script.memory": 1}


def test_what_nothing_has_written_to_is_told(script: Script) -> None:
    def quiet() -> set[str]:
        return {path for path in paths_of(script.writes.quiet()) if path.startswith("value.script.")}

    assert quiet() == {"value.script.memory", "value.script.other"}
    script.kept = ["value.script.other"]
    memory(script)
    script.head()
    assert quiet() == set()


def test_tensors_that_come_in_each_step_are_compared_less_and_less_often(script: Script) -> None:
    asked = []
    for number in range(40):
        script.holds[f"more{number}"] = torch.ones(20_000)
        script.head()
        asked.append(script.writes.asks)
    assert asked.count(True) == 6
    assert len(script.writes.unproven()) == 40


def test_contents_are_compared_for_a_write_that_had_to_wait(script: Script) -> None:
    memory(script)
    script.head()
    assert script.writes.asks
    weight(script)
    seen = []
    for _ in range(3):
        script.head()
        seen.append(script.writes.asks)
    assert sum(seen) == 1


@pytest.mark.parametrize("what", ["memory", "model", "optimizer state"])
def test_a_tensor_that_the_script_drops_is_free_and_the_next_one_in_its_place_is_new(what: str, script: Script) -> None:
    holds = script.holds
    if what == "model":
        holds["shown"] = torch.nn.Linear(3, 2)
        held = weakref.ref(holds["shown"].weight)
        path = "module1.weight"
    elif what == "memory":
        held = weakref.ref(holds["memory"])
        path = "value.script.memory"
    else:
        momentum(script)
        held = weakref.ref(script.optimizer.state[script.model.bias]["momentum_buffer"])
        path = "optimizer0.1.momentum_buffer"
    script.head()
    script.writes.compared()
    if what == "optimizer state":
        script.optimizer.state.clear()
    else:
        del holds["shown" if what == "model" else "memory"]
    script.trees = ModuleTrees()  # they hold models as well, until others come
    script.head()
    gc.collect()
    assert held() is None
    if what == "model":
        holds["shown"] = torch.nn.Linear(3, 2)
    elif what == "memory":
        holds["memory"] = torch.zeros(20_000)
    else:
        momentum(script)
    assert path in script.head()


def test_a_process_that_takes_over_goes_on_with_what_the_lost_rank_knew(script: Script) -> None:
    """What had been written to before is no first write in it, and what was not compared is not forgotten."""
    weight(script)
    script.head()
    new = Script()
    new.boundary = 6
    new.writes.take_over(script.writes.unproven(), script.writes.quiet())
    assert new.head() == {"module0.weight": 1}
    weight(new)
    assert new.head() == {"module0.weight": 1}
    memory(new)
    assert new.head() == {"module0.weight": 1, "value.script.memory": 9}


def test_an_unprotected_rank_holds_none(script: Script) -> None:
    held = weakref.ref(script.holds["memory"])
    script.writes.drop()
    script.holds.clear()
    gc.collect()
    assert held() is None


class Models(Script):
    """The newest model is met first, so that the others have other names from then on."""

    def __init__(self) -> None:
        super().__init__()
        self.newest: torch.nn.Module | None = None

    def head(self) -> dict[str, int]:
        self.boundary += 1
        space: dict[str, Any] = {} if self.newest is None else {"newest": self.newest}
        state = take({**space, "model": self.model, "o": self.optimizer}, self.trees)
        self.writes.at_boundary(state, self.boundary, lambda: self.kept)
        return dict(self.writes.unproven())


def test_a_model_that_is_called_otherwise_is_no_new_one_and_the_new_one_is() -> None:
    script = Models()
    script.head()
    with torch.no_grad():
        script.model.weight.add_(1)
    script.head()
    script.writes.compared()
    script.newest = torch.nn.Linear(3, 2)
    assert script.head() == {"module0.weight": 2, "module0.bias": 2, "module1.bias": 2}
    script.writes.compared()
    with torch.no_grad():
        script.model.weight.add_(1)
    assert script.head() == {}
    with torch.no_grad():
        script.newest.weight.add_(1)  # type: ignore[operator, union-attr]  # a Linear's
    assert script.head() == {"module0.weight": 4}


def test_what_a_lost_rank_had_written_to_is_known_under_another_name_in_its_place() -> None:
    script = Models()
    script.writes.take_over((), b"")
    script.head()
    script.newest = torch.nn.Linear(3, 2)
    assert set(script.head()) == {"module0.weight", "module0.bias"}


def test_an_optimizer_that_takes_anothers_place_has_tensors_of_its_own() -> None:
    script = Models()
    memory_of_one = {"momentum_buffer": torch.zeros(2, 3)}
    script.optimizer.state[script.model.weight] = dict(memory_of_one)
    script.head()
    memory_of_one["momentum_buffer"].add_(1)
    script.head()
    script.writes.compared()
    script.optimizer = torch.optim.SGD(script.model.parameters(), lr=0.1, momentum=0.9)
    script.optimizer.state[script.model.weight] = {"momentum_buffer": torch.zeros(2, 3)}
    assert "optimizer0.0.momentum_buffer" in script.head()
