"""Tells how a migration ended, and counts it. The job may be over by it."""

from __future__ import annotations

from collections.abc import Callable

from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.execution.saving import Saving
from torchrelay.controller.migration import events as m
from torchrelay.controller.migration.state import State
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.replacement.respawns import Respawns
from torchrelay.controller.restart.fallen import Fallen
from torchrelay.protocol.events import MigrationFinished, MoveNotMade
from torchrelay.protocol.names import EXIT_NO_SPARE_LEFT, EXIT_SUSPECT_NUMBER
from torchrelay.protocol.words.phases import CHECKPOINT, CLEARED, COMMITTED, DOWNTIME_ROWS, PLANNED, SAVE

EXIT_CODE_WITHOUT_CAUSE = 1
"""The exit code of a job that ends because a rank hangs: no process has an exit code to pass on."""


class Outcomes:
    """Outcomes of migrations. `give_up` is called when a migration leaves no way for the job to go on in its processes."""

    def __init__(
        self,
        config: ControllerConfig,
        outbox: Outbox,
        saving: Saving,
        respawns: Respawns,
        give_up: Callable[[Fallen], None],
    ) -> None:
        self._config = config
        self._outbox = outbox
        self._give_up = give_up
        self._saving = saving
        self._respawns = respawns
        self._exit_code = EXIT_CODE_WITHOUT_CAUSE
        self._asked: m.MoveRequested | None = None
        self.is_apart = False
        """Whether the migration in progress saves what ranks hold that should hold the same."""
        self.done = 0
        self.latest_move_s = 0.0
        """For how long the latest planned move has held training up."""
        self.last = ""
        """The latest migration, in words."""
        self.over: Callable[[State, m.Finished, bool], None] = lambda state, finished, apart: None
        """Called with how a migration ended, and whether ranks had come apart."""

    def begins(self, event: m.Event, exit_code: int | None) -> None:
        """Take note that a migration begins with this event. `exit_code`: of the process whose end the event is, if it is one's."""
        self.is_apart = False
        self._exit_code = EXIT_CODE_WITHOUT_CAUSE if exit_code is None else exit_code
        self._asked = event if isinstance(event, m.MoveRequested) else None

    def came_apart(self) -> None:
        """Take note that ranks which held the same do not: the migration in progress saves what they hold, and the job ends."""
        self.is_apart = True
        self._exit_code = EXIT_SUSPECT_NUMBER

    def finished(self, s: State, f: m.Finished) -> None:
        """Tell how the migration ended, and give the job up if nothing else is left."""
        ranks = tuple(sorted(s.moved or s.lost or ({s.rank: ""} if s.rank >= 0 else ())))
        self._tell(s, f, ranks)
        self.over(s, f, self.is_apart)
        if f.outcome != COMMITTED:
            self.move_is_off(s.migration, f.reason)
        elif self._asked is not None and self._asked.rank not in ranks:
            # It has turned into the migration of another rank, which was lost meanwhile.
            self.move_is_off(s.migration, f"given up for this: {s.reason}")
        if f.outcome != CLEARED and s.kind != SAVE:
            self.done += 1
            redone = f", {s.steps_redone} step{'s' * (s.steps_redone > 1)} done again" if s.steps_redone else ""
            self.last = f"{s.migration} ({s.kind}, rank {s.rank}): {f.outcome}{redone}: {f.reason}"
        if (fallen := self._fallen(s, f)) is not None:
            self._give_up(fallen)

    def move_is_off(self, migration: str, reason: str) -> None:
        """Tell that the move which was asked for does not take place, if the migration was a move."""
        if self._asked is not None:
            self._outbox.emit(MoveNotMade(migration, self._asked.rank, self._asked.reason, reason))
            self._asked = None

    def _tell(self, s: State, f: m.Finished, ranks: tuple[int, ...]) -> None:
        spares = tuple(s.moved[r] for r in ranks if r in s.moved)
        downtime_s = {row: s.seconds.get(row, 0.0) for row in DOWNTIME_ROWS}
        if s.kind == PLANNED:
            self.latest_move_s = sum(downtime_s.values())
        self._outbox.emit(
            MigrationFinished(
                s.migration,
                s.kind,
                f.outcome,
                s.rank,
                s.moved.get(s.rank, spares[0] if spares else ""),
                ranks,
                spares,
                s.steps_redone,
                downtime_s,
                s.seconds.get("prepare_beside", 0.0),
                s.transferred_bytes,
                s.generation,
                f.reason,
                s.cause,
            )
        )

    def _fallen(self, s: State, f: m.Finished) -> Fallen | None:
        """Return why the job cannot go on in its processes; None: it can."""
        times = self._respawns.losses_at_step(s.rank)
        if f.outcome == CHECKPOINT and self.is_apart:
            return Fallen(EXIT_SUSPECT_NUMBER, f.reason, s.rank, s, refused=f.reason)
        if f.outcome == CHECKPOINT:
            reason = f"{s.reason}; {f.reason}{self._how_to_go_on(f.directory)}"
            return Fallen(EXIT_NO_SPARE_LEFT, reason, s.rank, s, f.directory, losses_at_step=times)
        if f.fatal:
            reason = f"{s.reason}; rank {s.rank} cannot be replaced: {f.reason}"
            return Fallen(self._exit_code, reason, s.rank, s, refused=f.reason, losses_at_step=times)
        return None

    def _how_to_go_on(self, directory: str) -> str:
        if self._config.adopted:
            return ""
        command = self._config.resume_command.replace("{directory}", directory)
        several = [f"go on with, on {n}: {text}" for n, text in self._saving.resume_commands(directory).items()]
        return f"; {'; '.join(several) or f'go on with: {command}'}"
