"""What a rehearsal has shown, in one sentence: for the report, the status and the events alike."""

from __future__ import annotations

from torchrelay.protocol.names import REHEARSAL_DIFFERS, REHEARSAL_FAILED, REHEARSAL_SAME


def sentence(outcome: str, rank: int, world_size: int, boundary: int, reason: str) -> str:
    """Return the sentence. `outcome`: one of names.REHEARSAL_OUTCOMES; `reason`: as in messages.Rehearsed."""
    who = f"rank {rank} of {world_size}"
    at = f" at step {boundary}" if boundary >= 0 else ""
    if outcome == REHEARSAL_SAME:
        return f"rehearsed{at}: {who}, bitwise"
    if outcome == REHEARSAL_DIFFERS:
        return f"rehearsed{at}: {who} could not be replaced, a new process would hold something else: {reason}"
    if outcome == REHEARSAL_FAILED:
        return f"rehearsed{at}: {who} could not be replaced: {reason}"
    return f"not rehearsed{at}: {who}: {reason}"
