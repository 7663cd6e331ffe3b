"""What a process could not do, in words: orders go by the names of their messages; and how a rank has failed."""

from __future__ import annotations

JOIN = "join"
"""All that a process does until it is the rank, as OrderFailed names it."""
_DOING = {
    JOIN: "take over rank {rank}",
    "Plan": "go on as rank {rank}",
    "Serve": "hand over what rank {rank} holds",
    "Rebuild": "connect rank {rank} to the others",
    "SaveCheckpoint": "save what rank {rank} holds",
    "KeepFile": "write the checkpoint's files for rank {rank}",
}


_FAILED = "the script failed on rank "
_OURS_FAILED = "torchrelay could not go on with rank "


def failed(rank: int, kind: str, message: str, *, ours: bool) -> str:
    """Return `the script failed on rank 1: ValueError: no such file`. `ours`: with an error that torchrelay has raised."""
    return f"{_OURS_FAILED if ours else _FAILED}{rank}: {kind}: {message}"


def says_failed(reason: str) -> bool:
    """Return whether the reason of a job's end is a sentence of `failed`."""
    return reason.startswith((_FAILED, _OURS_FAILED))


def could_not(worker: str, rank: int, order: str, reason: str) -> str:
    """Return `n0.s0 could not take over rank 1: out of memory`."""
    return f"{worker} could not {_DOING.get(order, f'do {order} for rank {{rank}}').format(rank=rank)}: {reason}"


def says_could_not(text: str) -> bool:
    """Return whether a decision's text contains a sentence of `could_not`."""
    return any(f" could not {doing.partition('{')[0]}" in text for doing in _DOING.values())
