"""Decides whether a pod on a node that does not answer is deleted without the node's word. That frees its name and its volumes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stranded:
    """The pod. `holds_rank`: it has a rank, or is about to.

    `unready_s`: how long its node has been seen not ready, 0 if it is ready.
    """

    pod: str
    node: str
    holds_rank: bool
    unready_s: float


@dataclass(frozen=True)
class ForceVerdict:
    force: bool
    reason: str


def judge_stranded(s: Stranded, grace_s: float) -> ForceVerdict:
    """Decide whether the pod is deleted by force. Its processes may go on until the node is back.

    A rank is safe from them by the generation. A pod that has a rank stays until the rank has moved.
    """
    who = f"pod {s.pod} on {s.node}"
    if not s.unready_s:
        return ForceVerdict(False, f"{who}: its node answers")
    if s.holds_rank:
        return ForceVerdict(False, f"{who} has a rank, which has to move first")
    if s.unready_s < grace_s:
        return ForceVerdict(False, f"{who}: its node has not answered for {s.unready_s:.0f} s of {grace_s:.0f} s")
    return ForceVerdict(True, f"{who}: its node has not answered for {s.unready_s:.0f} s, and its rank lives elsewhere")
