"""The migration protocol: `Migration.handle(event, now) -> instructions`. No input or output, no clock of its own.

Its driver tells it what happened, and carries out what it answers. Questions among the instructions (ChooseSpare, ChooseBoundary,
ChooseFolder, DecideTarget, ReadJournal, WriteCheckpoint) are answered by further events.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchrelay.controller.migration.events import Event, Ignored, Instruction, Said, TimePassed
from torchrelay.controller.migration.state import State
from torchrelay.controller.migration.steps import ARRIVE
from torchrelay.controller.migration.table import TABLE, TableRow
from torchrelay.controller.migration.turn import Turn
from torchrelay.protocol.errors import FatalError
from torchrelay.protocol.words.phases import Deadlines, Phase


class Migration:
    """One migration of one or several ranks, from the first suspicion to the first step on the new workers."""

    def __init__(self, state: State, deadlines: Deadlines | None = None) -> None:
        self.state = state
        self.deadlines = deadlines or Deadlines()

    @classmethod
    def new(
        cls,
        migration: str,
        holders: Mapping[int, str],
        world_size: int,
        generation: int,
        now_s: float,
        deadlines: Deadlines | None = None,
    ) -> Migration:
        """Make a new migration. `holders`: rank -> worker of the generation in force (none on resume).

        `generation`: the newest ever used.
        """
        return cls(State(migration, world_size, generation, dict(holders), phase_since_s=now_s), deadlines)

    @property
    def is_over(self) -> bool:
        return bool(self.state.outcome)

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Take note of a past fact. Return what is to be done.

        Raises FatalError if a handler leaves the table: a bug, never an event's fault.
        """
        s = self.state
        if self.is_over:
            return [] if isinstance(event, TimePassed) else [Ignored(f"{_name(event)}: {s.migration} is over")]
        row = TABLE[s.phase]
        turn = Turn(s, self.deadlines, now_s, ARRIVE)
        if isinstance(event, TimePassed):
            if s.deadline_s is None or now_s < s.deadline_s or row.late is None:
                return []
            row.late(turn)
            self._check(row.late_leads_to, turn)
            return turn.out
        transition = row.on.get(type(event.report) if isinstance(event, Said) else type(event))
        if transition is None:
            return [Ignored(f"{_name(event)} does not belong to {s.phase.value}")]
        if isinstance(event, Said):
            generation = getattr(event.report, "generation", s.generation)
            if generation != s.generation:
                return [Ignored(f"{_name(event)} is of generation {generation}, not {s.generation}")]
        transition.handler(turn, event)
        self._check(transition.leads_to, turn)
        return turn.out

    @staticmethod
    def _check(leads_to: tuple[Phase, ...], turn: Turn) -> None:
        for phase in turn.hops:
            if phase not in leads_to:
                raise FatalError(f"the transition table knows no way to {phase.value} here")
            leads_to = TABLE[phase].on_arrival


def arrows(row: TableRow) -> dict[Phase, list[str]]:
    """Return next phase -> names of what leads there, for the diagram."""
    found: dict[Phase, list[str]] = {}
    for kind, transition in row.on.items():
        for phase in transition.leads_to:
            found.setdefault(phase, []).append(kind.__name__)
    for phase in row.late_leads_to:
        found.setdefault(phase, []).append("deadline")
    for phase in row.on_arrival:
        found.setdefault(phase, []).append("complete on arrival")
    return found


def _name(event: Event) -> str:
    if isinstance(event, Said):
        return f"{type(event.report).__name__} of {event.worker} (rank {event.rank})"
    return type(event).__name__
