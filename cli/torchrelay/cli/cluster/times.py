"""What the time of a job was used for, as its TrainingJob says it. No I/O."""

from __future__ import annotations

from datetime import datetime
from typing import Any


def wall_time_s(job: dict[str, Any], now_s: float) -> float:
    """Return the time since the job began, until `now_s` by the wall clock or its end."""
    ended = _status(job).get("finishedAt", "")
    return max((time_s(ended) if ended else now_s) - time_s(job["metadata"].get("creationTimestamp", "")), 0.0)


def goodput(job: dict[str, Any], now_s: float) -> float | None:
    """Return useful time divided by all time, 0 to 1; None where the TrainingJob does not say it."""
    useful_s = _status(job).get("usefulSeconds")
    wall_s = wall_time_s(job, now_s)
    return None if useful_s is None or wall_s <= 0 else min(float(useful_s) / wall_s, 1.0)


def steps_per_s(job: dict[str, Any]) -> float | None:
    """Return the rate of the latest steps; None while no step is under way."""
    status = _status(job)
    step_s = float(status.get("stepSeconds", 0.0))
    return 1 / step_s if step_s > 0 and status.get("phase") == "Running" else None


def _status(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job.get("status") or {}
    return found


def time_s(text: str) -> float:
    """Return seconds of the wall clock; 0 for what is no time."""
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0
