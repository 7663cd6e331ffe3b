"""The commands that a page shows to be pasted: on a machine `torchrelay …`, in a cluster `kubectl torchrelay …`. Pure."""

from __future__ import annotations

from torchrelay.dashboard.record import RunRecord


def status(record: RunRecord) -> str:
    """Return the command that shows how the job is."""
    if record.job is not None:
        return f"kubectl torchrelay status {record.job.name} -n {record.job.namespace}"
    return f"torchrelay status{_run(record)}"


def clear(record: RunRecord, subject: str) -> str:
    """Return the command that takes a device or a node out of quarantine.

    Empty if no command does: a job in a cluster uses no more what it has put aside by itself.
    """
    if record.job is not None:
        found = record.barred.get(record.shown(subject))
        return f"kubectl torchrelay quarantine clear {found.name}" if found is not None else ""
    return f'torchrelay quarantine clear {subject} --reason "repaired"{_run(record)}'


def _run(record: RunRecord) -> str:
    return f" --run {record.run_id}" if record.run_id else ""
