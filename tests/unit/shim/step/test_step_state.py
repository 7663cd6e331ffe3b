"""Where a rank is within its step: each fact can follow some positions, and is refused in all others with what led there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchrelay.protocol.errors import FatalError
from torchrelay.shim.step.step_state import TRANSITIONS, StepFact, StepPosition, StepState

FACTS: dict[StepFact, Callable[[StepState], None]] = {
    StepFact.HEAD: StepState.reached_head,
    StepFact.WENT_BACK: StepState.went_back,
    StepFact.GATE_REACHED: StepState.reached_gate,
    StepFact.GATE_LEFT: StepState.left_gate,
    StepFact.GATE_PASSED: lambda step: step.passed_gate(7),
    StepFact.UPDATED: StepState.updated,
    StepFact.LOOP_LEFT: StepState.left_loop,
    StepFact.SCRIPT_ENDED: StepState.ended_script,
}
WAY_TO: dict[StepPosition, tuple[StepFact, ...]] = {
    StepPosition.SET_UP: (),
    StepPosition.BODY: (StepFact.HEAD,),
    StepPosition.GATE: (StepFact.HEAD, StepFact.GATE_REACHED),
    StepPosition.UPDATE: (StepFact.HEAD, StepFact.GATE_REACHED, StepFact.GATE_PASSED),
    StepPosition.AFTER: (StepFact.HEAD, StepFact.GATE_REACHED, StepFact.GATE_PASSED, StepFact.UPDATED),
    StepPosition.FINISHED: (StepFact.SCRIPT_ENDED,),
}


def at(position: StepPosition) -> StepState:
    step = StepState()
    for fact in WAY_TO[position]:
        FACTS[fact](step)
    assert step.position is position
    return step


@pytest.mark.parametrize("position", StepPosition)
@pytest.mark.parametrize("fact", StepFact)
def test_a_fact_leads_to_its_position_or_changes_nothing(fact: StepFact, position: StepPosition) -> None:
    step = at(position)
    before = dict(vars(step))
    allowed, to = TRANSITIONS[fact]
    if position in allowed:
        FACTS[fact](step)
        assert step.position is to
    else:
        with pytest.raises(FatalError):
            FACTS[fact](step)
        assert vars(step) == before


def test_what_cannot_happen_in_a_step() -> None:
    """The table says so; here, that it goes on saying it."""
    refused = {(f, p) for f in StepFact for p in StepPosition if p not in TRANSITIONS[f][0]}
    assert {
        (
            StepFact.GATE_REACHED,
            StepPosition.UPDATE,
        ),  # the gate of this step was passed: its update would be confirmed twice
        (StepFact.GATE_REACHED, StepPosition.AFTER),
        (StepFact.UPDATED, StepPosition.GATE),  # nobody has let it through
        (StepFact.UPDATED, StepPosition.BODY),
        (StepFact.LOOP_LEFT, StepPosition.GATE),
        (StepFact.WENT_BACK, StepPosition.SET_UP),  # there is no boundary
        (StepFact.WENT_BACK, StepPosition.FINISHED),
        (StepFact.GATE_PASSED, StepPosition.SET_UP),
    } <= refused


def test_a_refusal_tells_what_led_there() -> None:
    step = at(StepPosition.AFTER)
    with pytest.raises(FatalError) as caught:
        step.reached_gate()
    assert str(caught.value) == (
        "the gate was reached, after the update, where that cannot be; before: in set-up: a training loop's head was reached; "
        "before the gate: the gate was reached; at the gate: the gate was passed; in the update: the optimizer's update is done"
    )


def test_a_head_ends_what_the_step_before_was() -> None:
    step = at(StepPosition.BODY)
    step.began_behind_loop()
    step.went_astray()
    step.passed_gate(1)
    step.updated()
    assert (step.behind, step.astray, step.stepped) == (True, True, True)
    step.reached_head()
    assert (step.behind, step.astray, step.stepped, step.gates_passed) == (False, False, False, 1)


def test_gradients_are_open_from_a_backward_to_the_gate() -> None:
    step = at(StepPosition.BODY)
    step.computed_gradients()
    assert step.gradients_open
    step.reached_head()
    assert step.gradients_open  # a loop of accumulation begins inside of the step
    step.passed_gate(1)
    assert not step.gradients_open
