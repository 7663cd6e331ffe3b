"""One run of the script in a folder of its own: with torchrun, or with torchrelay and faults."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchrelay.cli.drill import promise, records
from torchrelay.cli.drill.program import DrilledProgram
from torchrelay.cli.drill.recording import RecordingSettings, variables
from torchrelay.cli.drill.records import Parts, Record
from torchrelay.cli.folders import working_folder
from torchrelay.cli.struck_runs import process
from torchrelay.cli.struck_runs.cells import Cell
from torchrelay.cli.struck_runs.event_file import EventFile
from torchrelay.cli.struck_runs.hold import HoldFile
from torchrelay.protocol import events
from torchrelay.protocol.names import ENV_ENTROPY

OUTPUT_LINES = 60
"""torchrun says some twenty lines of its own behind the traceback of a script."""
STANDS_S = 30.0
"""So long a job without protection may stand after a fault, before its run is ended: nothing would come of waiting for more."""
LOOK_S = 1.0
"""How often a run with faults is looked at, whether it computes something else by now: it would never come to its end."""


@dataclass(frozen=True)
class DrillRun:
    """One run. `exit_code` None: it was ended at its time limit, or because it stood still. `wall_s`: how long it took.

    `log`: events, of a run with torchrelay. `diverged`: where it computed something else, so that it was ended.
    """

    exit_code: int | None
    records: Sequence[Record]
    wall_s: float
    folder: Path
    log: EventFile | None = None
    diverged: tuple[str, ...] = ()

    @property
    def output(self) -> str:
        """Return the last lines that the run printed."""
        return process.tail(self.folder / "stderr", OUTPUT_LINES) or process.tail(self.folder / "stdout", OUTPUT_LINES)


@dataclass(frozen=True)
class Reference:
    """The undisturbed run that others are compared with, and what of it is judged.

    `entropy`: what its chance was made of; empty: it was the system's.
    """

    records: Sequence[Record]
    judged: tuple[str, ...]
    entropy: str = ""

    @property
    def variables(self) -> dict[str, str]:
        return {ENV_ENTROPY: self.entropy} if self.entropy else {}

    @property
    def stop_at(self) -> dict[str, Parts]:
        """Return the last step of each rank where the script was ended early."""
        last = {str(rank): r.lines[-1].parts for rank, r in enumerate(self.records) if r.stopped and r.lines}
        return {rank: {name: parts[name] for name in self.judged} for rank, parts in last.items()}


def run_plain(program: DrilledProgram, folder: Path, steps: int, timeout_s: float) -> DrillRun:
    """Run with torchrun, for `steps` optimizer steps; 0: to the script's end. Makes `folder`."""
    copy, recorded = _prepare(program, folder)
    return _run(program, folder, program.torchrun(copy), RecordingSettings(str(recorded), steps), timeout_s)


def run_relay(
    program: DrilledProgram,
    folder: Path,
    reference: Reference,
    cells: Sequence[Cell],
    spares: int,
    timeout_s: float,
    steps: int = 0,
) -> DrillRun:
    """Run with torchrelay and the faults of `cells`, as far as the reference went, or for `steps` if it has no records.

    Makes `folder`, whose path has to be short.
    """
    copy, recorded = _prepare(program, folder)
    log = EventFile(folder / "events.jsonl")
    options = ["--events", str(log.path), "--jit-dir", str(folder / "jit")]
    options += ["--max-restarts=0", "--respawn-limit=0", "--no-refill"]
    options += [f"--inject={fault}" for cell in cells for fault in cell.faults]
    hold = HoldFile(folder / "hold", log) if any(cell.kind == "planned" for cell in cells) else None
    settings = RecordingSettings(str(recorded), steps, stop_at=reference.stop_at)
    if hold is not None:
        settings = replace(settings, hold=str(hold.path), slow=str(hold.slow))
    watch = _Watch(reference, recorded, hold, log)
    program = replace(program, variables={**program.variables, **reference.variables})
    run = _run(program, folder, program.torchrelay(copy, spares, options), settings, timeout_s, log, watch)
    log.read()
    return run


def _prepare(program: DrilledProgram, folder: Path) -> tuple[Path, Path]:
    copy = folder / "work"
    recorded = folder / "recorded"
    recorded.mkdir(parents=True)
    working_folder.copy(program.folder, copy)
    return copy, recorded


class _Diverged(Exception):
    """The run computes something else. `args`: where, in words."""


class _Stands(Exception):
    """The job will come to no end."""


class StandingJob:
    """Knows whether a job without protection stands after a fault, as one with a stopped rank does under torchrun, too."""

    def __init__(self, log: EventFile) -> None:
        self._log = log
        self._seen = (0, 0)
        self._news_s = 0.0

    def is_lost(self, now_s: float) -> bool:
        """Return whether the job stands for good.

        This is so if a fault struck when no rank could be replaced, no migration has begun, and for STANDS_S no step was made.
        """
        told = self._log.occurrences
        seen = (len(self._log.occurrences), self._log.summary.boundary)
        if seen != self._seen:
            self._seen = seen
            self._news_s = now_s
        faults = [place for place, o in enumerate(told) if isinstance(o, events.FaultFired)]
        if now_s - self._news_s < STANDS_S or not faults:
            return False
        if any(isinstance(o, events.MigrationStarted) for o in told[faults[-1] :]):
            return False
        return bool(promise.unprotected(promise.promised(told)))


class _Watch:
    def __init__(self, reference: Reference, recorded: Path, hold: HoldFile | None, log: EventFile) -> None:
        self._reference = reference
        self._recorded = recorded
        self._hold = hold
        self._log = log
        self._standing = StandingJob(log)
        self._next_s = time.monotonic() + LOOK_S

    def __call__(self) -> None:
        """Look at the run once. Raises _Diverged, _Stands."""
        if self._hold is not None:
            self._hold.watch()
        else:
            self._log.read()
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + LOOK_S
            now = records.read(self._recorded, len(self._reference.records))
            wrong = records.wrong_before_it_ended(self._reference.records, now, self._reference.judged)
            if wrong:
                raise _Diverged(*wrong)
            if self._standing.is_lost(time.monotonic()):
                raise _Stands


def _run(
    program: DrilledProgram,
    folder: Path,
    command: Sequence[str],
    settings: RecordingSettings,
    timeout_s: float,
    log: EventFile | None = None,
    watch: _Watch | None = None,
) -> DrillRun:
    began_s = time.monotonic()
    environment = _environment(program, settings, folder)
    code = None
    diverged = ()
    try:
        code = process.run(command, folder, environment, timeout_s, watch, folder / "work")
    except _Diverged as e:
        diverged = e.args
    except _Stands:
        pass  # as at the limit
    found = records.read(Path(settings.folder), program.ranks)
    return DrillRun(code, found, time.monotonic() - began_s, folder, log, diverged)


def _environment(program: DrilledProgram, settings: RecordingSettings, folder: Path) -> Mapping[str, str]:
    given = {**os.environ, **program.variables}
    return {
        **program.variables,
        **variables(settings, given),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TORCHRELAY_STATE_DIR": str(folder / "state"),
    }
