"""Nothing is heard of a node: is it lost?

An agent that is silent proves nothing by itself: it may starve, or its connection be down while the ranks beside it
train. What proves it is that ranks on other nodes have come to a stand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torchrelay.controller.config import Policy

WAIT = "wait"
GIVE_UP = "give-up"
END = "end"


@dataclass(frozen=True)
class WitnessRank:
    """A living rank on `node`, which is heard of. `stands`: it waits for others; `still_s`: since it last moved."""

    rank: int
    stands: bool
    still_s: float
    node: str = ""


@dataclass(frozen=True)
class Silence:
    """`away`: its connection is down. `ranks`: those that live there; `all_ranks`: no other lives. `unprotected_because`: as
    in Job.
    """

    node: str
    silent_s: float
    away: bool
    ranks: tuple[int, ...]
    all_ranks: bool
    witnesses: tuple[WitnessRank, ...]
    unprotected_because: str
    fenced_after_s: float = 0.0
    """By then a machine that is cut off has ended its processes itself; 0: it does not, NEVER: only others know that it is gone."""


@dataclass(frozen=True)
class SilenceVerdict:
    action: str
    reason: str


NEVER = math.inf
SURE_S = 10.0
"""More than a machine may have heard of who leads for longer than it was heard itself, and takes to end its processes."""


def fenced_after_s(lease_s: float, in_pods: bool = False) -> float:
    """After so long without a word of it a machine has ended its own processes; 0 where machines do not do so.

    Pods have no lease, since a controller may be away for long in a cluster: what is cut off is gone when the cluster says so.
    """
    if in_pods:
        return NEVER
    return lease_s + SURE_S if lease_s else 0.0


def judge_silence(silence: Silence, policy: Policy) -> SilenceVerdict:
    node = silence.node
    silent_s = silence.silent_s
    how = "is away" if silence.away else "is silent"
    heard = f"the agent of {node} has been {'away' if silence.away else 'silent'} for {silent_s:.1f} s"
    if silent_s < (policy.node_away_s if silence.away else policy.node_silent_s):
        return SilenceVerdict(WAIT, "")
    if not silence.ranks:
        if silent_s < policy.agent_grace_s:
            return SilenceVerdict(WAIT, f"the agent of {node} {how}; it has spares only")
        return SilenceVerdict(GIVE_UP, f"{heard}; it had spares only")
    proves_itself = 0 < silence.fenced_after_s < NEVER
    nobody_left = "all ranks are there" if silence.all_ranks and not proves_itself else ""
    because = nobody_left or silence.unprotected_because
    if because:
        if silent_s < policy.agent_grace_s:
            return SilenceVerdict(WAIT, f"the agent of {node} {how}, and no rank can be replaced: {because}")
        return SilenceVerdict(END, f"{heard}, and no rank can be replaced: {because}")
    stuck = sorted({w.rank for w in silence.witnesses if w.stands and w.still_s >= policy.node_stuck_s})
    if stuck:
        return SilenceVerdict(GIVE_UP, f"{heard}, and {_ranks(stuck)} for it")
    if silence.witnesses:
        return SilenceVerdict(WAIT, f"the agent of {node} {how}, but training goes on")
    # Nobody passes a gate without the ranks that are here. Without any only the lease says that those there do not train.
    if silent_s < max(policy.agent_grace_s, silence.fenced_after_s):
        until = "; it is given up once its pod is gone from the cluster" if silence.fenced_after_s == NEVER else ""
        return SilenceVerdict(
            WAIT, f"the agent of {node} {how}, and there is no rank elsewhere that could tell more{until}"
        )
    return SilenceVerdict(GIVE_UP, f"{heard}, and there is no rank elsewhere that could tell more")


def _ranks(stuck: Sequence[int]) -> str:
    listed = ", ".join(map(str, stuck))
    return f"rank {listed} waits" if len(stuck) == 1 else f"ranks {listed} wait"
