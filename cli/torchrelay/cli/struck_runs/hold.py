"""Lets a program wait for its planned move: the joiner's set-up runs beside training, and small programs are over before it."""

from __future__ import annotations

from pathlib import Path

from torchrelay.cli.struck_runs.event_file import EventFile
from torchrelay.protocol import events
from torchrelay.protocol.phases import Phase


class Hold:
    """While the file at `path` exists, programs wait in the step that they are in. While that at `slow` exists, steps take long.

    A rank is stopped some tenths of a second ahead. With steps of a few milliseconds the script would be over before.
    """

    def __init__(self, path: Path, log: EventFile) -> None:
        self.path = path
        self.slow = path.with_name(f"{path.name}-slow")
        self._log = log
        self._over = False
        self.slow.touch()

    def watch(self) -> None:
        """From the fault until the job is asked to stop at a boundary, or the migration is given up."""
        for occurrence in self._log.read():
            if isinstance(occurrence, events.FaultFired) and not self._over:
                self.path.touch()
            elif isinstance(occurrence, events.MigrationFinished | events.JobFinished):
                self._let_go()
                self.slow.unlink(missing_ok=True)
            elif isinstance(occurrence, events.PhaseChanged) and occurrence.phase == Phase.QUIESCING:
                self._let_go()

    def _let_go(self) -> None:
        self._over = True
        self.path.unlink(missing_ok=True)
