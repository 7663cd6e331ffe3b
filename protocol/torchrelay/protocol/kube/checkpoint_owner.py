"""Which job of a cluster has saved a just-in-time checkpoint.

Jobs of one name come one after another, in one folder. A job of the same name in another namespace may use that folder at the
same time. A whole checkpoint names its job in its manifest, which is written last. Until then the folder's name does, from the
first file on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from torchrelay.protocol.names import JIT_PREFIX

_ORIGIN = "origin"
_JOB = "job"
_MARK_CHARS = 8


def job_id(namespace: str, name: str, lineage: str) -> str:
    """Return what the manifests of a job's checkpoints name. `lineage`: the same for all runs of the job, and for no other job."""
    return f"{namespace}/{name}/{lineage}"


def saved_by(manifest: Mapping[str, Any]) -> str:
    """Return the job that a checkpoint's manifest names, or empty. Raises TypeError, AttributeError for what is no manifest."""
    return str(manifest.get(_ORIGIN, {}).get(_JOB, ""))


def folder_prefix(job: str) -> str:
    """Return how the names of folders begin that jobs of this name and namespace save into. `job`: a `job_id`."""
    return f"{JIT_PREFIX}{hashlib.sha256(_whose(job).encode()).hexdigest()[:_MARK_CHARS]}-"


def is_of_name(saved: str, job: str) -> bool:
    """Return whether a checkpoint is of a job of this name and namespace; both as `job_id` returns them."""
    return _whose(saved) == _whose(job)


def _whose(job: str) -> str:
    return job.rpartition("/")[0]
