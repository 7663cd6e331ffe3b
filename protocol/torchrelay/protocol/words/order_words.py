"""What a process could not do, in words: orders go by the names of their messages."""

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


def could_not(worker: str, rank: int, order: str, reason: str) -> str:
    """`n0.s0 could not take over rank 1: out of memory`."""
    return f"{worker} could not {_DOING.get(order, f'do {order} for rank {{rank}}').format(rank=rank)}: {reason}"


def says_could_not(text: str) -> bool:
    """Whether a decision's text has such a sentence in it."""
    return any(f" could not {doing.partition('{')[0]}" in text for doing in _DOING.values())
