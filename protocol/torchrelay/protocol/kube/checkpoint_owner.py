"""Which job of a cluster has saved a just-in-time checkpoint. Jobs of one name come one after another, in one folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ORIGIN, _JOB = "origin", "job"


def job_id(namespace: str, name: str, lineage: str) -> str:
    """Return what the manifests of a job's checkpoints name. `lineage`: the same for all runs of the job, and for no other job."""
    return f"{namespace}/{name}/{lineage}"


def saved_by(manifest: Mapping[str, Any]) -> str:
    """Return the job that a checkpoint's manifest names, or empty. Raises TypeError, AttributeError for what is no manifest."""
    return str(manifest.get(_ORIGIN, {}).get(_JOB, ""))


def is_of_another_name(saved: str, job: str) -> bool:
    """Return whether a checkpoint is of a job of another name or namespace, which may live; both as `job_id` returns them."""
    return saved != "" and saved.rpartition("/")[0] != job.rpartition("/")[0]
