"""Lets a program wait for its planned move: the joiner's set-up runs beside training, and small programs are over before it."""

from __future__ import annotations

from pathlib import Path

from torchrelay.cli.struck_runs.event_file import EventFile
from torchrelay.protocol import events
from torchrelay.protocol.phases import Phase


class Hold:
    """While the file at `path` exists, the programs of the corpus wait in the step that they are in."""

    def __init__(self, path: Path, log: EventFile) -> None:
        self.path = path
        self._log = log
        self._over = False

    def watch(self) -> None:
        """From the fault until the job is asked to stop at a boundary, or the migration is given up."""
        for occurrence in self._log.read():
            if isinstance(occurrence, events.FaultFired) and not self._over:
                self.path.touch()
            elif isinstance(occurrence, events.MigrationFinished | events.JobFinished) or (
                isinstance(occurrence, events.PhaseChanged) and occurrence.phase == Phase.QUIESCING
            ):
                self._over = True
                self.path.unlink(missing_ok=True)
