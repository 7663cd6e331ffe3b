"""Steps that call their closure several times: the gate behind them, the way back to before them, and what they give."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.loop_script import LOST, LoopScript

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim import torch_hooks
from torchrelay.shim.capture import device, small
from torchrelay.shim.collectives import Entry

SCRIPT = """
for batch in range(3):
    losses.append(update(closure))
"""


class Training:
    """LBFGS on parameters that no journal takes, with the hooks as torch would call them."""

    def __init__(self, script: LoopScript) -> None:
        torch.manual_seed(0)
        self.script = script
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 2500), torch.nn.Tanh(), torch.nn.Linear(2500, 1))
        self.optimizer = torch.optim.LBFGS(self.model.parameters(), lr=0.05, max_iter=3, history_size=2)
        self.batch = torch.randn(16, 8)
        self.losses: list[float] = []
        self.positions: list[str] = []
        self.calls = 0
        self.fail_in_call = -1

    def closure(self) -> torch.Tensor:
        self.calls += 1
        self.optimizer.zero_grad()
        loss = self.model(self.batch).square().mean()
        loss.backward()
        self.positions.append(self.script.engine.position)
        if self.calls == self.fail_in_call:
            self.script.engine.interrupted(RuntimeError(LOST))
        return loss  # type: ignore[no-any-return]

    def update(self, closure: Any) -> float:
        runtime: Any = SimpleNamespace(engine=self.script.engine)
        args, _ = torch_hooks._before_step(runtime, self.optimizer, (self.optimizer, closure), {})
        loss = self.optimizer.step(args[1])
        torch_hooks._after_step(runtime, self.optimizer, (), {})
        return loss.item()

    def run(self) -> list[float]:
        names = {name: getattr(self, name) for name in ("model", "optimizer", "batch", "losses")}
        functions = {"closure": lambda: self.closure(), "update": lambda closure: self.update(closure)}
        self.script.run(SCRIPT, **names, **functions)
        return self.losses


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Training:
    return Training(LoopScript(monkeypatch, tmp_path))


def test_the_gate_is_behind_the_step(training: Training) -> None:
    training.run()
    assert set(training.positions) == {"body"}
    assert training.calls > len(training.losses)
    assert training.script.engine.gates_passed == 3
    assert training.script.engine.updates.early.copied_bytes > 0


@pytest.mark.parametrize("call", [2, 5, 9])
def test_a_loss_between_two_calls_takes_the_whole_step_back(
    call: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "undisturbed").mkdir()
    undisturbed = Training(LoopScript(monkeypatch, tmp_path / "undisturbed")).run()
    training = Training(LoopScript(monkeypatch, tmp_path))
    training.fail_in_call = call
    assert training.run() == undisturbed
    assert training.script.stood == ["body"]


def _shadow(training: Training, entries: list[Entry]) -> None:
    engine = training.script.engine
    engine.records.answers = entries


def test_what_a_closure_gives_is_recorded_and_answers_a_joiners(training: Training) -> None:
    engine = training.script.engine
    training.script.tracker.live, engine.position = True, "body"
    whole = engine.updates.whole
    theirs = [whole.told(value) for value in (torch.tensor([3.5]), 1.25)]
    recorded = list(engine.records.body())
    assert len(recorded) == 2
    assert theirs == [torch.tensor([3.5]), 1.25]
    _shadow(training, recorded)
    own = torch.tensor([7.0])
    assert whole.told(own) is own
    assert own.item() == 3.5
    assert whole.told(9.0) == 1.25
    with pytest.raises(StateMismatchError, match="where the lost rank did not"):
        whole.told(2.0)


def test_a_result_that_was_not_kept_is_refused(training: Training) -> None:
    engine = training.script.engine
    training.script.tracker.live, engine.position = True, "body"
    _shadow(training, [Entry("a closure's result", "", None)])
    with pytest.raises(StateMismatchError, match="was not kept"):
        engine.updates.whole.told(torch.ones(1))


def test_behind_the_update_a_donor_gives_the_histories_of_then(training: Training) -> None:
    training.run()
    engine = training.script.engine
    state = engine.writer.walk([sys._getframe()])
    (directions,) = [values["old_dirs"] for values in training.optimizer.state.values()]
    names = [path for path, tensor in state.large.items() if tensor is directions[0]]
    assert len(names) == 1
    assert not small.is_small(directions[0])
    before = directions.pop(0)
    directions.append(torch.ones_like(before))
    assert device.catalogue(state, state.roots)[f"value.{names[0]}"].data_ptr() == before.data_ptr()
    later = device.after_update(state)
    assert device.catalogue(later, later.roots)[f"value.{names[0]}"].data_ptr() == directions[0].data_ptr()
