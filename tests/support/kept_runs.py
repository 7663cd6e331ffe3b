"""Runs that are written down as the command keeps them."""

from __future__ import annotations

from pathlib import Path

from support import told_runs
from torchrelay.cli.folders.folder import Process
from torchrelay.cli.folders.kept_run import RunHead, RunWriter
from torchrelay.protocol import events
from torchrelay.protocol.messages import JobEvent

SMALL_RUN = [events.to_job_event(what, time_s) for time_s, what in told_runs.small_run()]


def head(run_id: str = "ab", started_s: float = 1_700_000_000.0, process: Process | None = None) -> RunHead:
    return RunHead(run_id, "pretrain", run_id, "/data", ("run", "train.py"), started_s, process)


def write(folder: Path, told: list[JobEvent], of: RunHead) -> list[str]:
    """Return what was said of it."""
    said: list[str] = []
    writer = RunWriter(folder, of, said.append)
    for event in told:
        writer.take(event)
    writer.close()
    return said


def progress(time_s: float, boundary: int) -> JobEvent:
    return events.to_job_event(events.ProgressMade(boundary, 2.0, 2, 1), time_s)


def finished(time_s: float, exit_code: int = 0, reason: str = "all ranks are done") -> JobEvent:
    return events.to_job_event(events.JobFinished(exit_code, reason), time_s)
