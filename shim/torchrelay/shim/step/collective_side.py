"""What the script's collectives ask of their rank, and what they tell it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from torchrelay.protocol.words.positions import PHASES, RankPhase
from torchrelay.shim.adapters.process_groups import process_group
from torchrelay.shim.capture.values.by_identity import ByIdentity
from torchrelay.shim.comm.collective_mode import CollectiveMode
from torchrelay.shim.comm.collective_records import lasts
from torchrelay.shim.comm.finished import FinishedCollective
from torchrelay.shim.observe.origins import SourcePlace, call_site
from torchrelay.shim.step.step_state import StepPosition
from torchrelay.shim.tensors.taint import Watch

if TYPE_CHECKING:
    from torchrelay.shim.step.engine import Engine

_AFTER = PHASES.index(RankPhase.AFTER)


class CollectiveSide:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._forbidden: Watch | None = None
        self._begun: ByIdentity[SourcePlace] = ByIdentity()
        """Handles of collectives that nobody has waited for yet, with the line that has begun each."""

    def mode(self) -> CollectiveMode:
        """Return how a collective is done that begins now. Changes nothing."""
        engine = self._engine
        if not engine.takes_part() or not engine.capturing:
            return CollectiveMode.OFF
        if engine.records.answers is not None:
            return CollectiveMode.OFF if engine.records.is_alone else CollectiveMode.ANSWER
        is_past = engine.step.position in (StepPosition.AFTER, StepPosition.FINISHED)
        return CollectiveMode.REPEAT if is_past or engine.left.is_left() else CollectiveMode.RECORD

    def communication_begins(self) -> None:
        """Note that the training thread is about to communicate, which may be the first sign that a loop was left."""
        engine = self._engine
        if engine.takes_part() and engine.capturing and engine.records.answers is None:
            engine.left.pass_over()

    def collective_begins(self) -> None:
        """Note that the training thread is about to call a collective of the script's own."""
        self.communication_begins()
        engine = self._engine
        engine.updates.collective_begins()
        if engine.journal.phase == _AFTER and engine.has_left(sys._getframe(1)):
            engine.phase(RankPhase.LEFT)

    def before_first_gate(self) -> bool:
        return self._engine.step.gates_passed == 0

    # What is begun with `async_op`.

    def begun_aside(self, work: Any) -> None:
        self._begun.put(work, call_site(sys._getframe(1)))

    def waited_for(self, work: Any) -> None:
        self._begun.pop(work)

    def look_for_open(self) -> None:
        """Report, when a step begins, a collective that nobody has waited for: its result is in no record."""
        for place in self._begun.values():
            self._engine.reporter.collective_goes_on(place)

    # What is recorded.

    def record(self, entry: FinishedCollective) -> None:
        records = self._engine.records
        after_gate = self._engine.step.position is StepPosition.AFTER
        records.add(entry, after_gate=after_gate)
        if after_gate:
            self.check_kept(records.after[-1])

    def completed(self, entry: FinishedCollective, now: FinishedCollective) -> None:
        self._engine.records.complete(entry, now)

    def record_message(self, entry: FinishedCollective) -> None:
        """Record a message of this rank alone: other ranks' records have nothing to compare it with."""
        self._engine.records.add(entry, after_gate=False)

    def check_kept(self, entry: FinishedCollective) -> None:
        """Report a collective behind the gate if a process that needs its results could not get them."""
        commit = self._engine.commit
        if commit is not None and not lasts(entry, process_group.size_of(entry.group)):
            self._engine.reporter.large_result_late(commit, entry.name)

    def own_result_late(self, name: str) -> None:
        if self._engine.commit is not None:
            self._engine.reporter.own_result_late(self._engine.commit, name)

    # What a joiner is answered.

    def caught_up(self, group: str) -> bool:
        return self._engine.shadow is not None and bool(self._engine.shadow.at_collective(group))

    def behind_gate(self) -> bool:
        """Return whether this is a joiner that goes through the rest of a step, after its optimizer step, without peers."""
        return self._engine.shadow is not None and self._engine.shadow.tail is not None

    def answer(self, name: str, group: str, *, without_result: bool = False) -> FinishedCollective:
        """Return the recorded result as CollectiveRecords.answer does, but none for further calls within a joiner's update.

        A joiner's update finds no state, makes it, and may tell others of it. All that comes of such an update is replaced, by
        state of the journal and by tensors of a donor.
        """
        engine = self._engine
        if engine.shadow is not None and engine.updates.whole.open and not engine.records.expects(name, group):
            return FinishedCollective(name, group, None)
        return engine.records.answer(name, group, without_result=without_result)

    def answered(self, tensors: list[torch.Tensor]) -> None:
        watch = self._engine.shadow.tail.watch if self.behind_gate() else self._forbidden
        if watch is not None:
            watch.certain(tensors)

    def forbid(self, watch: Watch) -> None:
        """Keep `watch` open until the next head."""
        self._forbidden = watch
        watch.__enter__()

    def at_head(self) -> None:
        """Close what `forbid` has opened: what was forbidden is allowed again."""
        if self._forbidden is not None:
            self._forbidden.__exit__(None, None, None)
            self._forbidden = None
