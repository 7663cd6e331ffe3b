"""A rehearsal: a process goes a joiner's way to a boundary, takes in its host state, and says whether it holds what the rank held.

No tensor is transferred and no rank takes part, so the comparison leaves out what comes from a donor.
"""

from __future__ import annotations

import time
import traceback
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import torch

from torchrelay.protocol.errors import JournalError, MovedOnError, StateMismatchError
from torchrelay.protocol.messages import Gap, Rehearsed
from torchrelay.protocol.names import (
    NO_JOINER,
    REHEARSAL_DIFFERS,
    REHEARSAL_FAILED,
    REHEARSAL_OPEN,
    REHEARSAL_SAME,
)
from torchrelay.shim.capture import rng
from torchrelay.shim.capture.records.difference import Difference
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.instrument.activation import Activation
from torchrelay.shim.join.fast_forward import FastForward, Goal, check_texts
from torchrelay.shim.join.put_state import put_state
from torchrelay.shim.join.recorded import RecordedPlace
from torchrelay.shim.join.restore_at_boundary import arrive
from torchrelay.shim.journal import payload
from torchrelay.shim.observe.origins import NOWHERE, SourcePlace, where_made
from torchrelay.shim.script.guard import reason_of
from torchrelay.shim.script.sites import INSTRUMENTED_FILES
from torchrelay.shim.set_up.staging import Staging
from torchrelay.shim.step import boundary_proof

if TYPE_CHECKING:
    from torchrelay.shim.join.rehearsing import RehearsalProcess
    from torchrelay.shim.step.engine import Engine

_OF_THIS_MOMENT = (MovedOnError, JournalError, MemoryError, torch.OutOfMemoryError, KeyboardInterrupt)
"""What a process may meet only as long as the rank that it rehearses lives beside it. Most errors of the system, too."""
_SHOWN_GAPS = 5
_REASON_CHARACTERS = 500


class Rehearsal:
    """Leads the process to the boundary, as a Joiner does; `child` takes the result and ends the process."""

    def __init__(self, engine: Engine, child: RehearsalProcess) -> None:
        order = child.order
        self._engine = engine
        self._order = order
        self._child = child
        self._began_s = time.monotonic()
        self._set_up: payload.SetUpJournal = payload.load(order.set_up, payload.SetUpJournal)
        self._journal: payload.BoundaryJournal = payload.load(order.journal, payload.BoundaryJournal)
        engine.join_by(FastForward(engine, self._set_up, self), self._set_up.collectives)
        self._staging = Staging(engine.set_up, leaves_no_trace=True)
        self._staging.begin()
        engine.opens = self._staging.open
        child.is_aside = self._staging.is_aside

    # On the way in.

    def wait_for_plan(self) -> payload.BoundaryJournal:
        if not self._journal.settled:
            self._end(REHEARSAL_OPEN, "the training loop was not known at that boundary")
        if self._journal.iterators:
            raise StateMismatchError(f"{', '.join(self._journal.iterators)}: what it yields next is not known")
        check_texts(self._set_up)
        return self._journal

    def newer_set_up(self) -> None:
        """Return nothing: the recording of the set-up was read together with the journal."""

    def check_answered(self) -> None:
        left = self._engine.records.answers
        if left:
            raise StateMismatchError(f"the rank called {left[0].name} before its loop; the new process did not")

    def put(self, goal: Goal, state: RecordedPlace, innermost: FrameType) -> None:
        put_state(self._engine, goal.trees, state, innermost)

    # At the head.

    def enter(self, goal: Goal, activation: Activation) -> None:
        engine = self._engine
        engine.arrive()
        left = arrive(engine, goal, activation)
        rng.restore(goal.journal.rng)
        found, state = boundary_proof.differences_on_entry(engine, goal.journal, goal.trees, activation.frame, left)
        found = found[:_SHOWN_GAPS]
        if found:
            gaps = tuple(_gap(self._order.rank, state, difference) for difference in found)
            self._end(REHEARSAL_DIFFERS, "; ".join(map(str, found)), gaps, len(state.nodes))
        self._end(REHEARSAL_SAME, "", (), len(state.nodes))

    # The end.

    def failed(self, error: BaseException) -> None:
        """Report `error`, which the script or the way to the boundary has raised: that is no failure of the script's."""
        place = _raised_at(error)
        reason = reason_of(error)
        if isinstance(error, _OF_THIS_MOMENT) or (
            isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
        ):
            self._end(REHEARSAL_OPEN, reason)
        where = f" ({place.file}:{place.line})" if place.file else ""
        text = f"rehearsal: rank {self._order.rank} could not be replaced: {reason[:_REASON_CHARACTERS]}{where}"
        self._end(REHEARSAL_FAILED, reason, (Gap("rehearsal", NO_JOINER, text, *place),))

    def _end(self, outcome: str, reason: str, gaps: tuple[Gap, ...] = (), nodes: int = 0) -> NoReturn:
        order = self._order
        took_s = time.monotonic() - self._began_s
        reason = reason[:_REASON_CHARACTERS]
        self._child.end(Rehearsed(order.request, order.rank, order.boundary, outcome, reason, gaps, nodes, took_s))


def _gap(rank: int, state: HostState, found: Difference) -> Gap:
    place = where_made(state, found.node, found.key) if found.node >= 0 else NOWHERE
    text = f"rehearsal: rank {rank} could not be replaced: {found} in a new process"
    return Gap("rehearsal", NO_JOINER, text[:_REASON_CHARACTERS], *place)


def _raised_at(error: BaseException) -> SourcePlace:
    """Return the innermost line of the script's own that was running."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [SourcePlace(file, line) for file, line in frames if file in INSTRUMENTED_FILES]
    return own[-1] if own else NOWHERE
