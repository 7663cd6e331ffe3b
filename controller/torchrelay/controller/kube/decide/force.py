"""Is a pod on a node that does not answer to be deleted without the node's word? That frees its name, and its volumes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stranded:
    """`holds_rank`: it has a rank, or is about to. `unready_s`: how long its node has been seen not ready, 0 if it is ready."""

    pod: str
    node: str
    holds_rank: bool
    unready_s: float


@dataclass(frozen=True)
class ForceVerdict:
    force: bool
    reason: str


def judge_stranded(s: Stranded, grace_s: float) -> ForceVerdict:
    """What runs there may go on until the node is back: a rank is safe from it by the generation, and leaves first."""
    who = f"pod {s.pod} on {s.node}"
    if not s.unready_s:
        return ForceVerdict(False, f"{who}: its node answers")
    if s.holds_rank:
        return ForceVerdict(False, f"{who} has a rank, which has to move first")
    if s.unready_s < grace_s:
        return ForceVerdict(False, f"{who}: its node has not answered for {s.unready_s:.0f} s of {grace_s:.0f} s")
    return ForceVerdict(True, f"{who}: its node has not answered for {s.unready_s:.0f} s, and its rank lives elsewhere")
