"""Where a rank is within its step. Only the methods of `StepState` change it. Each of them is a fact that is past.

`TRANSITIONS` says in which positions a fact can happen. `StepState` refuses any other fact, and tells what led there: otherwise
the rank would report a place where it is not, and act as if it were there.
"""

from __future__ import annotations

import enum
from collections import deque

from torchrelay.protocol.errors import FatalError
from torchrelay.protocol.words.positions import StandingPosition

_REMEMBERED = 12


class StepPosition(enum.Enum):
    SET_UP = "in set-up"
    BODY = "before the gate"
    GATE = "at the gate"
    UPDATE = "in the update"
    AFTER = "after the update"
    FINISHED = "at the script's end"


STANDS_AT = {
    StepPosition.SET_UP: StandingPosition.SET_UP,
    StepPosition.BODY: StandingPosition.BODY,
    StepPosition.GATE: StandingPosition.GATE,
    StepPosition.AFTER: StandingPosition.AFTER,
    StepPosition.FINISHED: StandingPosition.FINISHED,
}
"""In an update nobody stands but torn."""


class StepFact(enum.Enum):
    HEAD = "a training loop's head was reached"
    WENT_BACK = "the rank went back to its boundary"
    GATE_REACHED = "the gate was reached"
    GATE_LEFT = "the gate was left, to be reached again without protection"
    GATE_PASSED = "the gate was passed"
    UPDATED = "the optimizer's update is done"
    LOOP_LEFT = "the loop was left at its head"
    SCRIPT_ENDED = "the script has ended"


_P = StepPosition
_IN_A_STEP = frozenset({_P.BODY, _P.GATE, _P.UPDATE, _P.AFTER})

TRANSITIONS: dict[StepFact, tuple[frozenset[StepPosition], StepPosition]] = {
    # A loop may begin in set-up, behind a step that an exception has cut short, and at the script's end.
    StepFact.HEAD: (frozenset(StepPosition), _P.BODY),
    StepFact.WENT_BACK: (_IN_A_STEP, _P.BODY),
    # Twice where the script has caught what ended its wait.
    StepFact.GATE_REACHED: (frozenset({_P.BODY, _P.GATE}), _P.GATE),
    StepFact.GATE_LEFT: (frozenset({_P.BODY, _P.GATE}), _P.BODY),
    # Without a stop where there is nothing to write, and after an update where the step is one of another loop.
    StepFact.GATE_PASSED: (frozenset({_P.BODY, _P.GATE, _P.AFTER}), _P.UPDATE),
    StepFact.UPDATED: (frozenset({_P.UPDATE}), _P.AFTER),
    StepFact.LOOP_LEFT: (frozenset({_P.BODY}), _P.AFTER),
    StepFact.SCRIPT_ENDED: (frozenset(StepPosition), _P.FINISHED),
}
"""Fact -> the positions that it can happen in, and the one that it leads to."""


class StepState:
    """Everybody reads the attributes. Only this class writes them."""

    def __init__(self) -> None:
        self.position = StepPosition.SET_UP
        self.gates_passed = 0
        self.stepped = False
        """Whether an update was done since the latest head."""
        self.gradients_open = False
        """Whether there was a backward since the latest boundary, and no optimizer step after it."""
        self.astray = False
        """Whether a step was done in a loop that was not known to train: until it comes round, there is no boundary in it."""
        self.behind = False
        """Whether the step's gate is behind the loop that the boundary is in, which was over with gradients left over."""
        self._led_here: deque[tuple[StepPosition, StepFact]] = deque(maxlen=_REMEMBERED)

    @property
    def is_in_body(self) -> bool:
        return self.position is StepPosition.BODY

    @property
    def is_before_update(self) -> bool:
        return self.position in (StepPosition.BODY, StepPosition.GATE)

    @property
    def is_past_gate(self) -> bool:
        """Return whether the gate is passed, and the rank still in the step."""
        return self.position in (StepPosition.UPDATE, StepPosition.AFTER)

    def _happened(self, fact: StepFact) -> None:
        allowed, to = TRANSITIONS[fact]
        if self.position not in allowed:
            story = "; ".join(f"{position.value}: {earlier.value}" for position, earlier in self._led_here)
            raise FatalError(f"{fact.value}, {self.position.value}, where that cannot be; before: {story or 'nothing'}")
        self._led_here.append((self.position, fact))
        self.position = to

    def reached_head(self) -> None:
        """Note that a step begins, at the head of any loop."""
        self._happened(StepFact.HEAD)
        self.stepped = self.astray = self.behind = False

    def took_boundary(self) -> None:
        """Note a boundary. Gradients that there may be are part of it."""
        self.gradients_open = False

    def went_back(self) -> None:
        self._happened(StepFact.WENT_BACK)
        self.stepped = False

    def entered(self, gates_passed: int) -> None:
        """Note that a process that takes over the rank is at the boundary after `gates_passed` steps."""
        self.gates_passed = gates_passed
        self.stepped = False

    def computed_gradients(self) -> None:
        self.gradients_open = True

    def updated_early(self) -> None:
        """Note an update before the gate: another update comes in this iteration."""
        self.gradients_open = False

    def began_behind_loop(self) -> None:
        """Note that the step begins whose gradients were left over when its loop ended."""
        self.behind = True

    def went_astray(self) -> None:
        self.astray = True

    def reached_gate(self) -> None:
        self._happened(StepFact.GATE_REACHED)

    def left_gate(self) -> None:
        self._happened(StepFact.GATE_LEFT)

    def passed_gate(self, number: int) -> None:
        """Note that the gate is passed. `number`: the steps whose gradients all ranks have, with this one."""
        self._happened(StepFact.GATE_PASSED)
        self.gates_passed = number
        self.gradients_open = False

    def updated(self) -> None:
        self._happened(StepFact.UPDATED)
        self.stepped = True

    def updated_before_gate(self) -> None:
        """Note that all updates of the step were made before the gate that was passed now."""
        self.stepped = True

    def left_loop(self) -> None:
        self._happened(StepFact.LOOP_LEFT)

    def ended_script(self) -> None:
        self._happened(StepFact.SCRIPT_ENDED)
