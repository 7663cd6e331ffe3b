"""Ask torch's recorder of NCCL collectives for those that are not over.

A collective has begun when the event in front of its kernel has come. Then all that it computes with is there, and it waits for the
other ranks. torch records that event where TORCH_NCCL_ENABLE_TIMING is set. Elsewhere every collective that is not over counts as
begun. Seen on torch 2.13.0, whose recorder is on by default (TORCH_FR_BUFFER_SIZE; TORCH_NCCL_TRACE_BUFFER_SIZE before).
"""

from __future__ import annotations

import os
import pickle
from typing import Any, NamedTuple

from torch._C import _distributed_c10d

_dump: Any = getattr(_distributed_c10d, "_dump_nccl_trace", None)
_BEGUN = "started"
_QUEUED = "scheduled"


class WaitingCollective(NamedTuple):
    name: str
    group: str
    number: int
    """The collective's number in its group."""


def waiting_collectives() -> list[WaitingCollective]:
    """Return the collectives that have begun on a device and are not over; none where torch records nothing."""
    if _dump is None:
        return []
    states = {_BEGUN} if os.environ.get("TORCH_NCCL_ENABLE_TIMING") == "1" else {_BEGUN, _QUEUED}
    # The recorder is this process's own: no other process writes what is unpickled here.
    trace = pickle.loads(_dump(includeCollectives=True, includeStackTraces=False, onlyActive=True))
    return [
        WaitingCollective(entry["profiling_name"], entry["process_group"][0], entry["collective_seq_id"])
        for entry in trace.get("entries", ())
        if entry["state"] in states
    ]
