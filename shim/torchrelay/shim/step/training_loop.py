"""Which loop is the training loop: found by watching, as the innermost one around an optimizer step that comes round again.

Until a step has been seen, others stand in for it. `LoopTracker.boundary_sites` has what was found.
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable

import torch

from torchrelay.shim.gradients.gradient_record import have_gradients
from torchrelay.shim.instrument.activation import Activation
from torchrelay.shim.instrument.loop_tracker import LoopTracker
from torchrelay.shim.script.sites import PACKAGES, SITES
from torchrelay.shim.step.boundary_snapshot import BoundarySnapshot
from torchrelay.shim.step.step_state import StepState
from torchrelay.shim.step.updates.early_updates import EarlyUpdates

_MOST_TRAINING_STAND_INS = 16
_MOST_STAND_INS = 2
_LOOKS_S = 5.0
_LOOKS_SHARE = 0.05
"""Before a step was seen, looks may take so many seconds, and beyond that so much of the time."""
_MOST_LATER_HEADS = 128
"""So many are written before a step was seen, of loops in which that may come in a later iteration (a rollout, then updates)."""
_MOST_IN_A_STEP = 16
"""So many updates of one iteration can be one step. What they write is copied before."""


class LoopHead(enum.Enum):
    """What the head of a loop is that was just reached."""

    BOUNDARY = "of the training loop, or of one that stands in for it"
    MAY_TRAIN = "of a further loop that seems to train: a boundary, and perhaps around another one"
    AROUND = "of a loop around the training loop"
    MAY_BE_AROUND = "of a loop that may turn out to be around one"
    OTHER = "of any other loop"

    @property
    def is_boundary(self) -> bool:
        return self in (LoopHead.BOUNDARY, LoopHead.MAY_TRAIN)

    @property
    def is_written(self) -> bool:
        """Return whether a joiner needs the state at this head, to be led into the loop."""
        return self in (LoopHead.MAY_TRAIN, LoopHead.AROUND, LoopHead.MAY_BE_AROUND)


class TrainingLoop:
    def __init__(
        self,
        tracker: LoopTracker,
        step: StepState,
        early: EarlyUpdates,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tracker = tracker
        self._clock = clock
        self._looked_s = 0.0
        """How long looks at heads have taken before a step was seen."""
        self._looks_since_s = math.inf
        self._step = step
        self._early = early
        self.around: set[str] = set()
        """Sites of the loops around and of those that train."""
        self.step_stack: list[Activation] = []
        """The loops around the latest optimizer step, outermost first."""
        self._looked_at: set[str] = set()
        self._stood_in: dict[str, int] = {}
        self._later_heads = 0

    def at_head(self, activation: Activation, depth: int, latest: BoundarySnapshot | None) -> LoopHead:
        """Return what this head is. `depth`: the place of the loop in the stack; `latest`: the boundary before."""
        tracker = self._tracker
        step = self._step
        if step.stepped and activation.heads > 1 and tracker.boundary_sites != {activation.site}:
            self._refine(activation, depth, latest)
        known = bool(tracker.boundary_sites)
        if activation.site in tracker.boundary_sites:
            is_one = step.stepped or latest is None or self._begins_anew(activation, latest)
            return LoopHead.BOUNDARY if is_one else LoopHead.OTHER
        if (
            not known
            and activation.heads == 1
            and not step.stepped
            and depth == 0
            and self._is_worth_a_look(activation)
        ):
            return LoopHead.BOUNDARY
        if activation.site in self.around and not self._is_within_the_step(depth):
            return LoopHead.AROUND
        if known and self._may_train(activation, latest):
            self._looked_at.add(activation.site)
            return LoopHead.MAY_TRAIN
        if activation.heads == 1 and not (known and activation.site in self._looked_at):
            if not self._is_worth_a_look(activation) or not self._has_time_to_look():
                return LoopHead.OTHER
            self._looked_at.add(activation.site)
            return LoopHead.MAY_BE_AROUND
        if not known and not step.stepped and self._has_time_to_look() and self._is_worth_following(activation):
            return LoopHead.MAY_BE_AROUND
        return LoopHead.OTHER

    def has_looked(self, took_s: float) -> None:
        """Note how long a look at a head took, for which nobody knows yet whether the loop is around one that trains."""
        if not self._step.stepped:
            self._looks_since_s = min(self._looks_since_s, self._clock() - took_s)
            self._looked_s += took_s

    def _has_time_to_look(self) -> bool:
        """Return whether looks before the first step leave the script its time: it may play thousands of games before that.

        What is not looked at is named as a gap, should the loop turn out to be around the one that trains.
        """
        if self._step.stepped or self._looked_s <= _LOOKS_S:
            return True
        return self._looked_s <= _LOOKS_S + _LOOKS_SHARE * (self._clock() - self._looks_since_s)

    def _is_within_the_step(self, depth: int) -> bool:
        """Return whether a loop at this place of the stack is inside the training loop.

        It was that itself until that one was found.
        """
        return any(outer.site in self._tracker.boundary_sites for outer in self._tracker.stack[:depth])

    def _is_worth_following(self, activation: Activation) -> bool:
        """Return whether the loop may train in a later iteration than its first: a joiner needs the head of that iteration."""
        site = SITES[activation.site]
        if not site.trains or site.file in PACKAGES or self._later_heads >= _MOST_LATER_HEADS:
            return False
        self._later_heads += 1
        return True

    def _is_worth_a_look(self, activation: Activation) -> bool:
        """Return whether a head is worth a walk before a step was seen.

        A few times; if the user's own code there seems to train, more often, and then ever more rarely: a rollout of thousands of
        plays may come before the first update, and each look at a large state takes longer than a play.
        """
        site = SITES[activation.site]
        count = self._stood_in[activation.site] = self._stood_in.get(activation.site, 0) + 1
        if site.trains and site.file not in PACKAGES:
            return count <= _MOST_TRAINING_STAND_INS or count.bit_count() == 1
        return count <= _MOST_STAND_INS

    def _begins_anew(self, activation: Activation, latest: BoundarySnapshot) -> bool:
        """Return whether the boundary with this number is here from now on: the loop that it was in ended without another step.

        Gradients that were computed there would be lost by going back to here, unless the script has dropped them: those of an
        epoch's last batches, which are too few for an update.
        """
        if activation.heads != 1 or latest.activation in self._tracker.stack:
            return False
        return not (self._step.gradients_open and have_gradients(latest.state))

    def _may_train(self, activation: Activation, latest: BoundarySnapshot | None) -> bool:
        """Return whether a further training loop seems to begin, or one around it. It stands in until a step is seen, once only."""
        if latest is None or activation.site in self._looked_at or not SITES[activation.site].trains:
            return False
        if not torch.is_grad_enabled():
            return False  # an evaluation, most likely of one rank alone: a boundary in it helps nobody
        return self._begins_anew(activation, latest)

    def stands_in(self, activation: Activation) -> bool:
        """Return whether another loop is known to train, and this one is not.

        This rank may be alone in it, while others wait in the loop that comes next: no other rank would meet it at this head.
        """
        known = self._tracker.boundary_sites
        return bool(known) and activation.site not in known

    def _refine(self, activation: Activation, depth: int, latest: BoundarySnapshot | None) -> None:
        """Make the training loop the innermost one around an optimizer step that comes round again in the same activation."""
        if activation not in self.step_stack:
            return
        if activation.site in self.around:
            if self._step.astray and activation.steps <= _MOST_IN_A_STEP and self.step_stack[-1] is activation:
                assert latest is not None
                self._take_together(activation, latest)
            return
        around_step = [a.site for a in self.step_stack]
        known = self._tracker.boundary_sites.intersection(around_step)
        if all(around_step.index(site) < depth for site in known):
            self._tracker.boundary_sites -= known
            self._tracker.boundary_sites.add(activation.site)
            if latest is not None and (activation.heads, activation.steps) == (2, 1):
                # The one gate of the loop that stood in was in this loop's first iteration, and so were the updates behind it.
                self._early.go_on_in(activation.site, latest.activation.site)
            self.around |= {a.site for a in self._tracker.stack[: depth + 1]}

    def _take_together(self, activation: Activation, latest: BoundarySnapshot) -> None:
        """Make an iteration of the outer loop one step, where an inner loop makes a few updates and one more follows behind it."""
        self._tracker.boundary_sites.discard(latest.activation.site)
        self._tracker.boundary_sites.add(activation.site)
        self._early.turns[activation.site] = (activation.steps - 1, activation.steps - 1)
