"""The controller of a job on several machines is not heard: which one does this machine follow, or does it lead? Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from torchrelay.protocol.messages import LeadReply, Member
from torchrelay.protocol.quorum import QuorumAnswer, may_go_on, next_epoch

AWAY_S = 6.0
"""A controller that was ended has another one in its place by then, on its own machine."""
TURN_S = 6.0
"""Each machine lets the one before it begin, and come to be heard."""
AGAIN_S = 15.0
"""Between two attempts of one machine."""


class Action(Enum):
    WAIT = "wait"
    FOLLOW = "follow"
    LEAD = "lead"
    FENCE = "fence"
    """To end all processes of this machine: others may go on without them."""


@dataclass(frozen=True)
class View:
    """What one machine knows. `node`: its agent. `known`: the newest word of a controller that led; `silent_s`: since then.

    `answers`: the replies of all controllers that can be reached now, by address, except the one that this machine follows.
    `epoch`: of that one, as far as it is known, else 0. `holds`: it runs on this machine. `tried_s`: since this machine has last
    begun to lead, and `tried`: as which epoch. `barred`: why no other controller could lead this job.
    """

    node: str
    node_rank: int
    nnodes: int
    known: LeadReply
    silent_s: float
    answers: Sequence[tuple[str, LeadReply]] = ()
    epoch: int = 0
    holds: bool = False
    tried: int = 0
    tried_s: float = AGAIN_S
    barred: str = ""


@dataclass(frozen=True)
class SuccessionStep:
    """What a machine does next. `address`: of the controller to follow; `epoch`: of that controller, or the one to lead as."""

    action: Action
    reason: str
    address: str = ""
    epoch: int = 0


def next_step(v: View) -> SuccessionStep:
    """Decide what a machine does whose controller does not answer, or has too few machines to lead."""
    ours = [(a, r) for a, r in v.answers if r.job == v.known.job]
    leading = [(a, r) for a, r in ours if r.quorum and r.epoch >= v.known.epoch]
    others = [(a, r) for a, r in ours if r.epoch > max(v.known.epoch, v.epoch) and r.follows >= v.known.epoch]
    if leading or others:
        address, reply = max(leading or others, key=lambda found: found[1].epoch)
        how = "leads the job" if reply.quorum else "is about to lead the job"
        return SuccessionStep(Action.FOLLOW, f"the controller of {reply.node} at {address} {how}", address, reply.epoch)
    if v.known.begun and not v.barred and 0 < v.known.lease_s <= v.silent_s:
        why = f"nothing was heard of whoever leads the job for {v.silent_s:.0f} s, and other machines may go on without this one"
        return SuccessionStep(Action.FENCE, f"{why}: its processes are ended (--lease)")
    if v.holds:
        return SuccessionStep(Action.WAIT, "its own controller waits for more machines")
    quiet = f"the controller of {v.known.node} is not heard any more"
    if v.barred:
        return SuccessionStep(Action.WAIT, f"{quiet}, and no other one could lead the job: {v.barred}")
    members = [m.node for m in v.known.members]
    if len(members) <= 2:
        verdict = may_go_on(members, (v.node,), False, v.known.shared)
        if verdict.answer is QuorumAnswer.WAIT:
            return SuccessionStep(Action.WAIT, f"{quiet}; {verdict.reason}")
    place = _place(v.node, v.known.node, v.known.members)
    if v.silent_s < AWAY_S + place * TURN_S or v.tried_s < AGAIN_S:
        return SuccessionStep(Action.WAIT, f"{quiet}; {place} machine{'s' * (place != 1)} would lead before this one")
    epoch = next_epoch(max(v.known.epoch, v.tried, v.epoch), v.node_rank, v.nnodes)
    return SuccessionStep(
        Action.LEAD, f"{quiet}: this machine leads the job, if enough of the others come to it", epoch=epoch
    )


def _place(node: str, leader: str, members: Sequence[Member]) -> int:
    """Return how many machines would lead before this one, if the leader is gone."""
    row = sorted((m for m in members if m.node not in (leader, "")), key=lambda m: (m.node_rank, m.node))
    return next((place for place, m in enumerate(row) if m.node == node), len(row))
