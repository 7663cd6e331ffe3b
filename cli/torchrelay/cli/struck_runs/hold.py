"""Lets a program wait for what is prepared beside training, such as a joiner's set-up: small programs are over before it."""

from __future__ import annotations

from pathlib import Path

from torchrelay.cli.struck_runs.event_file import EventFile
from torchrelay.protocol import events
from torchrelay.protocol.words.phases import COMMITTED, Phase


class HoldFile:
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
        """Hold the program from the fault until the job is asked to stop at a boundary, or the migration is given up."""
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


class HoldForSpare:
    """While the file at `path` exists, programs wait in the step that they are in: after each of the first `times` migrations,
    until there are as many spares again as there are to be.

    A rank that is lost sooner ends the wait: its successor could not come past it.
    """

    def __init__(self, path: Path, log: EventFile, times: int) -> None:
        self.path = path
        self._log = log
        self._times = times
        self._made = False

    def watch(self) -> None:
        """Look once. To be called again and again, from the start to the end."""
        for occurrence in self._log.read():
            if isinstance(occurrence, events.MigrationFinished) and occurrence.outcome == COMMITTED and self._times:
                self._times = self._times - 1
                self._made = False
                self.path.touch()
            elif isinstance(occurrence, events.SpareMade):
                self._made = True
            elif self._ends_the_wait(occurrence):
                self.path.unlink(missing_ok=True)

    def _ends_the_wait(self, occurrence: events.Occurrence) -> bool:
        if isinstance(occurrence, events.SparesChanged):
            return self._made and occurrence.ready >= occurrence.wanted
        return isinstance(occurrence, events.FaultFired | events.MigrationStarted | events.JobFinished)
