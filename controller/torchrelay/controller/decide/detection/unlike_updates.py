"""Do ranks wait for each other because they make unlike numbers of updates?

A rank waits in front of each update for all others, which the script did not ask for. Where one of them makes no more updates, it
waits elsewhere for the first one, or has ended, and neither can go on: without torchrelay both would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchrelay.controller.config import Policy
from torchrelay.controller.decide.detection.hang import Vital, threshold_s
from torchrelay.controller.decide.detection.links import cut_off, have_been_probed
from torchrelay.controller.decide.listed import listed
from torchrelay.protocol.words.positions import RankPhase


def unlike_updates(
    vitals: Sequence[Vital], median_step_s: float, policy: Policy, blamed: Mapping[int, int], *, is_protected: bool
) -> str:
    """Return why nobody is to wait in front of an update any more; empty as long as that may be right.

    A rank that is through with its training loop comes to no update before the others have answered it. Neither does one that has
    called more in the same step than those in front of the update: but it may hang, so it is replaced once, and counts here if it
    comes to a stand in the same step again. Where no rank can be replaced anyway, nothing of that need be known.
    `blamed`: by rank, the boundary at which it was last taken for one that hangs.
    """
    at_gate = [v for v in vitals if v.phase == RankPhase.GATE and v.waiting]
    ended = [v for v in vitals if v.phase == RankPhase.FINISHED]
    elsewhere = [
        v for v in vitals if v.waits_for_peers and _waits_elsewhere(v, at_gate, blamed, is_protected=is_protected)
    ]
    if not at_gate or not (ended or elsewhere) or len(at_gate) + len(ended) + len(elsewhere) < len(vitals):
        return ""
    limit_s = threshold_s(median_step_s, policy)
    waiting = [*at_gate, *elsewhere]
    is_old_news = any(v.news_age_s > policy.stale_progress_s for v in vitals)
    if is_old_news or any(v.silent_s < limit_s or v.idle_s < limit_s for v in waiting):
        return ""
    links = {v.rank: v.links for v in vitals}
    is_known = have_been_probed(links, policy) or max(v.silent_s for v in waiting) >= limit_s + policy.explain_grace_s
    if not is_known or cut_off(links, policy) is not None:
        return ""
    others = sorted([*ended, *elsewhere], key=lambda v: v.rank)
    return (
        f"ranks make unlike numbers of updates: {_named(others)} went on without another one after {_made(others)}, "
        f"and {_named(at_gate)} came to one more"
    )


def _waits_elsewhere(v: Vital, at_gate: Sequence[Vital], blamed: Mapping[int, int], *, is_protected: bool) -> bool:
    if v.phase == RankPhase.BODY and is_protected:
        return blamed.get(v.rank) == v.boundary and all(_has_called_more(v, other) for other in at_gate)
    return v.phase == RankPhase.LEFT or (not is_protected and v.phase in (RankPhase.BODY, RankPhase.AFTER))


def _has_called_more(v: Vital, at_gate: Vital) -> bool:
    """Whether it waits in a communication of the same step that the other one has not called.

    That one would have counted it twice by now: a wait counts when it begins and when it is over. Its gate has counted twice, too.
    """
    is_same_step = (v.boundary, v.gates_passed) == (at_gate.boundary, at_gate.gates_passed)
    return is_same_step and v.count >= at_gate.count - 1


def _named(vitals: Sequence[Vital]) -> str:
    return f"{'rank' if len(vitals) == 1 else 'ranks'} {listed([v.rank for v in vitals])}"


def _made(vitals: Sequence[Vital]) -> str:
    numbers = sorted({v.gates_passed for v in vitals})
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
