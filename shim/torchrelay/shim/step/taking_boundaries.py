"""Takes a boundary: remembers everything that the iteration can change, and writes it down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchrelay.protocol.words.positions import RankPhase
from torchrelay.shim.adapters.process_groups import process_group
from torchrelay.shim.capture import rng
from torchrelay.shim.instrument.activation import Activation
from torchrelay.shim.journal.payload import place_of
from torchrelay.shim.step.boundary_snapshot import BoundarySnapshot
from torchrelay.shim.step.costs import OwnWork
from torchrelay.shim.step.step_state import StepPosition

if TYPE_CHECKING:
    from torchrelay.shim.step.engine import Engine


class TakingBoundaries:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def take(self, activation: Activation, number: int) -> bool:
        """At the head of the training loop. Returns whether it is a boundary.

        It is none for a joiner where the others have left the loop, nor where protection costs more than it may.
        """
        engine = self._engine
        engine.updates.reads.at_head()
        place = place_of(engine.tracker.stack[: engine.tracker.stack.index(activation) + 1])
        if not self._leaves_shadow_step(activation, place):
            return False
        own = OwnWork(engine.trees.reads)
        if engine.tracker.boundary_sites:  # before, it is a loop of set-up that may turn out to train
            engine.budget.head(own.started_s)
        if engine.unprotected.costs_too_much():
            engine.start_step()
            return False
        self._mark_records(activation)
        engine.start_step()
        engine.step.took_boundary()
        engine.collective_side.look_for_open()
        latest = engine.commit
        engine.draws.at_boundary(latest.item if latest is not None else None)
        commit = self._snapshot(activation, number, place)
        engine.stands_at(commit)
        self._write(latest, commit)
        engine.costs.head(own.took_s())
        engine.budget.spent(own.took_cpu_s())
        self._tell(commit)
        return True

    def _leaves_shadow_step(self, activation: Activation, place: str) -> bool:
        """Of a joiner behind its gate: this head may end its step. False where it is one that the others have gone past."""
        engine = self._engine
        if engine.shadow is None or engine.step.position is not StepPosition.AFTER:
            return True
        engine.shadow.at_step_end()  # an iteration with fewer updates than others
        if engine.shadow is not None:
            if engine.shadow.passes_over(place):
                return False
            engine.shadow.at_next_head(activation)
        return True

    def _mark_records(self, activation: Activation) -> None:
        """From here on collectives belong to the step that begins."""
        records = self._engine.records
        draws = self._engine.draws
        before = activation.before
        activation.drawn = tuple(records.log[len(records.log) if before is None else before.mark :])
        activation.began = () if before is None else tuple(draws.began[before.began :])
        records.cut(activation.first_mark)
        records.body_mark = activation.head_mark = len(records.log)

    def _snapshot(self, activation: Activation, number: int, place: str) -> BoundarySnapshot:
        engine = self._engine
        before = engine.commit.state if engine.commit is not None else None
        if engine.writer.begins_anew():
            engine.begin_trees_anew()
            before = None
        engine.unprotected.begins_step()
        if engine.step.gates_passed == 0:
            engine.trees.settings.set_up_goes_on()
        origins = engine.trees.data_origins
        origins.fresh_is_made = activation.heads > 1
        if (
            activation.seen_within is not None
        ):  # a loop within it might have been the one that trains, and is part of its step
            origins.is_of_step(*activation.seen_within)
            activation.seen_within = None
        engine.trees.led.in_set_up = number == 0
        engine.trees.files.at_boundary()
        known_anew = engine.fetching.at_boundary(), engine.trees.led.at_boundary(), engine.trees.queues.at_boundary()
        if any(known_anew):
            before = None
        state = engine.writer.state_at(activation.frame, before, number)
        engine.trees.at_boundary()
        engine.writer.settle_data(state, activation)
        now = rng.capture()
        return BoundarySnapshot(
            number,
            activation,
            engine.draws.noted(activation.item, now),
            state,
            now,
            activation.heads,
            place,
            engine.saves.begun(),
            process_group.group_names(),
            len(engine.scripted),
        )

    def _write(self, latest: BoundarySnapshot | None, commit: BoundarySnapshot) -> None:
        """Into the journal, with what other parts keep beside it. From then on the rank can be replaced here."""
        engine = self._engine
        number = commit.boundary
        engine.journal.boundary = number
        engine.journal.count = 0
        engine.replaced.at_boundary(latest, commit)
        engine.layouts.note(number)
        engine.layouts.step_begins()
        engine.gradients.at_boundary(commit.state, number)
        if engine.own is not None:
            engine.own.at_boundary(commit)
        engine.replicas.before_journal(commit)
        engine.writer.boundary(commit)
        if engine.set_up is not None:
            engine.set_up.at_boundary(number)
        if number > 0:
            engine.stores.training_begins()
            if engine.opens is open:  # else it begins when nothing is written aside any more
                engine.files.begin()
        engine.phase(RankPhase.BODY)

    def _tell(self, commit: BoundarySnapshot) -> None:
        """All who look at a boundary, or begin a step of their own there."""
        engine = self._engine
        state = commit.state
        if engine.faults is not None and engine.shadow is None and not engine.wrapped:
            engine.faults.strike_in_forward(state.roots)
        engine.updates.states.at_boundary(state)
        engine.updates.writes.at_boundary(state)
        engine.updates.effects.at_boundary(state)
        engine.updates.reads.results.at_boundary(state)
        engine.replicas.at_boundary(commit)
        if engine.keeper is not None:
            engine.keeper.at_boundary(commit)
        engine.reporter.at_boundary(commit)
