"""The folder of all runs that are kept: where it is, what is in it, and how much of it stays."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchrelay.cli.folders.kept_run import EVENTS_FILE, RunHead, read_head
from torchrelay.dashboard.event_lines import EventLines
from torchrelay.dashboard.record import RunRecord
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.events import JobFinished
from torchrelay.protocol.names import ENV_HISTORY_DIR, ENV_STATE_DIR

RUNS_KEPT = 200
RUNNING = "running"
KILLED = "no end was written: its command was killed"
MOST_BYTES = 256 << 20
NOT_KEPT = f"no run is kept: {ENV_HISTORY_DIR} is empty, or not set beside {ENV_STATE_DIR}"
KEEP = f"hint: export {ENV_HISTORY_DIR}=$HOME/.local/state/torchrelay/history"


@dataclass(frozen=True)
class KeptRun:
    """One run of the history."""

    folder: Path
    head: RunHead

    @property
    def events(self) -> Path:
        return self.folder / EVENTS_FILE

    def is_called(self, wanted: str) -> bool:
        """Return whether this is the run's id, its name, or the name of its folder."""
        return wanted in (self.head.run_id, self.head.machine, self.head.name, self.folder.name)

    def record(self) -> RunRecord:
        """Read the run's events. Raises UserError if they cannot be read."""
        return EventLines(self.events).read_all()

    def end(self, record: RunRecord) -> tuple[int | None, str]:
        """Return the exit code, if one was written, and how the run ended in words. `record`: its events."""
        if record.ended is not None and isinstance(end := record.ended.what, JobFinished):
            return end.exit_code, end_in_words(end)
        return None, RUNNING if self.head.is_running else KILLED


def end_in_words(end: JobFinished) -> str:
    """Return `done`, or the exit code with its reason, and who has asked for it."""
    by = f" (asked for by {end.by})" if end.by else ""
    return "done" if end.exit_code == 0 else f"exit code {end.exit_code}: {end.reason}{by}"


def history_folder(environment: Mapping[str, str]) -> Path | None:
    """Return where runs are kept; None if none are to be kept. The folder need not exist.

    With a state folder of its own, as in a drill, no run is kept unless a folder is named for that.
    """
    chosen = environment.get(ENV_HISTORY_DIR)
    if chosen is not None or environment.get(ENV_STATE_DIR):
        return Path(chosen).absolute() if chosen else None
    if environment.get("XDG_STATE_HOME"):
        return Path(environment["XDG_STATE_HOME"]) / "torchrelay" / "history"
    if environment.get("HOME"):
        return Path(environment["HOME"]) / ".local" / "state" / "torchrelay" / "history"
    return None


def kept_runs(history: Path | None) -> list[KeptRun]:
    """Return all runs, the newest first."""
    if history is None:
        return []
    try:
        folders = sorted((p for p in history.iterdir() if p.is_dir() and not p.is_symlink()), reverse=True)
    except OSError:
        return []
    heads = ((folder, read_head(folder)) for folder in folders)
    return [KeptRun(folder, head) for folder, head in heads if head is not None]


def kept_record(history: Path | None, run_id: str) -> RunRecord | None:
    """Return what is kept of a run, which may go on; None if nothing is, or it cannot be read."""
    run = next((run for run in kept_runs(history) if run.head.run_id == run_id), None)
    try:
        return run.record() if run is not None else None
    except UserError:
        return None


def choose_kept(history: Path | None, wanted: str) -> KeptRun:
    """Return the newest run of this id or name. Raises UserError if there is none."""
    runs = kept_runs(history)
    for run in runs:
        if run.is_called(wanted):
            return run
    if history is None:
        raise UserError(f"run {wanted} does not run, and {NOT_KEPT}\n{KEEP}")
    known = ", ".join(dict.fromkeys(run.head.run_id for run in runs[:8]))
    others = f"the newest ones are {known}" if known else "there is none at all"
    raise UserError(f"no run {wanted} is kept in {history}; {others}\nhint: torchrelay history")


def events_file(environment: Mapping[str, str], given: str | None) -> Path:
    """Return the wanted file: a path, or the events of a kept run by its id or name; of the newest run if nothing is given.

    Raises UserError if there is none.
    """
    if given is not None and Path(given).exists():
        return Path(given)
    history = history_folder(environment)
    if given is not None:
        try:
            return choose_kept(history, given).events
        except UserError as e:
            raise UserError(f"{given} is no file of `run --events`, and {e}") from e
    runs = kept_runs(history)
    if not runs:
        kept = f"no run is kept in {history}" if history is not None else NOT_KEPT
        raise UserError(f"{kept}; name a file of `run --events`\nhint: torchrelay run --events events.jsonl train.py")
    return runs[0].events


def prune(history: Path) -> None:
    """Remove the oldest runs until the bounds hold; none that still runs."""
    size_bytes = 0
    for number, run in enumerate(kept_runs(history)):
        size_bytes += _size_bytes(run.folder)
        if (number >= RUNS_KEPT or size_bytes > MOST_BYTES) and number and not run.head.is_running:
            shutil.rmtree(run.folder, ignore_errors=True)


def _size_bytes(folder: Path) -> int:
    try:
        return sum(file.stat().st_size for file in folder.iterdir())
    except OSError:  # another command removes it now
        return 0
