"""Updates before the gate: what they wrote is put back bit for bit, and nothing else is."""

from __future__ import annotations

import sys

import pytest
import torch
from support.loop_script import LoopScript

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.records import undo
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.step.updates.early_updates import EarlyUpdates


def _update(parameter: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()


@pytest.mark.parametrize("steps_before", [0, 2])
def test_parameters_and_optimizer_state_are_as_before_the_update(steps_before: int) -> None:
    parameter = torch.nn.Parameter(torch.randn(200, 200))
    optimizer = torch.optim.AdamW([parameter], lr=0.1)
    for _ in range(steps_before):
        _update(parameter, optimizer)
    state = HostState()
    state.versions.append((parameter, parameter._version, "parameter"))
    before = parameter.detach().clone()
    kept = {k: v.clone() for k, v in optimizer.state.get(parameter, {}).items()}
    objects = dict(optimizer.state.get(parameter, {}))
    early = EarlyUpdates()
    early.keep(optimizer)
    _update(parameter, optimizer)
    assert not torch.equal(parameter, before)
    early.put_back(state)
    assert torch.equal(parameter, before)
    now = dict(optimizer.state.get(parameter, {}))
    assert now.keys() == kept.keys()
    assert all(torch.equal(now[key], kept[key]) and now[key] is objects[key] for key in kept)
    undo.check_large_untouched(state)
    assert not early.pending


def test_what_was_written_before_the_copy_was_made_is_found() -> None:
    parameter = torch.nn.Parameter(torch.randn(200, 200))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    state = HostState()
    state.versions.append((parameter, parameter._version, "the parameter"))
    with torch.no_grad():
        parameter.mul_(2)
    early = EarlyUpdates()
    early.keep(optimizer)
    _update(parameter, optimizer)
    early.put_back(state)
    with pytest.raises(StateMismatchError, match="the parameter"):
        undo.check_large_untouched(state)


def test_the_gate_moves_behind_updates_that_a_backward_follows(script: LoopScript) -> None:
    script.run(
        """
        for batch in range(3):
            backward()
            step()
            places.append(position())
            if kind == "in turn":
                backward()
            step()
            places.append(position())
    """,
        backward=lambda: script.engine.step.computed_gradients(),
        position=lambda: script.engine.step.position.name.lower(),
        places=(places := []),
        kind="in turn",
    )
    assert places == ["after", "after", "body", "after", "body", "after"]
    assert script.engine.step.gates_passed == 3
    assert set(script.engine.updates.early.turns.values()) == {(1, 1)}


def test_the_gate_stays_in_front_of_the_first_of_several_updates_after_one_backward(script: LoopScript) -> None:
    script.run(
        """
        for batch in range(3):
            backward()
            step()
            places.append(position())
            step()
    """,
        backward=lambda: script.engine.step.computed_gradients(),
        position=lambda: script.engine.step.position.name.lower(),
        places=(places := []),
    )
    assert places == ["after"] * 3
    assert set(script.engine.updates.early.turns.values()) == {(0, 1)}


def test_an_iteration_with_fewer_updates_has_its_gate_at_the_next_head(script: LoopScript) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=1.0)
    script.run(
        """
        for batch in range(4):
            backward()
            step(optimizer)
            places.append(position())
            if batch in (0, 3):
                backward()
                step(optimizer)
    """,
        backward=lambda: script.engine.step.computed_gradients(),
        position=lambda: script.engine.step.position.name.lower(),
        places=(places := []),
        optimizer=optimizer,
    )
    assert places == ["after", "body", "body", "body"]
    assert [number for number, _ in script.boundaries] == [0, 1, 2, 3]
    assert script.engine.step.gates_passed == 4


def test_a_loss_at_such_a_gate_does_the_iteration_again(script: LoopScript, monkeypatch: pytest.MonkeyPatch) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=1.0)

    def wait(position: str) -> None:
        if script.failures and position == "gate" and script.engine.updates.early.pending:
            script.failures -= 1
            script.engine.rewind()

    monkeypatch.setattr(script.engine.updates.gate, "_wait", wait)
    script.failures = 1

    def update() -> None:
        script.engine.step.computed_gradients()
        script.engine.updates.before_step(sys._getframe(1), optimizer)
        parameter.grad = torch.ones(3)
        with torch.no_grad():
            parameter.sub_(1.0)
        script.engine.updates.after_step()

    names = script.run(
        """
        log = []
        for batch in range(3):
            log.append(batch)
            update()
            if batch == 0:
                update()
    """,
        update=update,
    )
    assert names["log"] == [0, 1, 2]
    assert script.failures == 0
    assert parameter.tolist() == [-3.0] * 3
