"""Tells whether the job stands still, and because of which rank.

Ranks that wait prove nothing by themselves: another rank may evaluate or save for minutes. The culprit is a rank that does not wait
while others do, and shows no life: no step of its loop, no processor time. Or its code runs in circles, or it waits for something
that only it could bring about, which is certain, so that less time is enough. One that a clock or a program beside the job may wake
has more time. Where all wait, the culprit is cut off from the others (links.py), or waits at another place than they.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchrelay.controller.config import Policy
from torchrelay.controller.decide.detection.links import cut_off, have_been_probed
from torchrelay.protocol.machine.process_states import CANNOT_GO_ON
from torchrelay.protocol.messages import LinkState
from torchrelay.protocol.words.positions import NOT_TRAINING, RankPhase

_CIRCLING = "circling"
_COMPUTES_S = 1.0
"""An agent looks at a rank that stands still more often than this."""


@dataclass(frozen=True)
class Vital:
    """What is known of one rank.

    `silent_s`: since its progress last moved; `idle_s`: since it was last seen computing or at the disk; `news_age_s`:
    since its agent last said anything of it; `stopped_s`: how long it has not been able to go on by itself (CANNOT_GO_ON).
    `stack`, `motion`, `asleep`, `links`, `in_own_code`, `keeps_lock`, `may_be_woken`, `locked`: as in messages.Explained, of this
    silence; empty, or None, until the rank was looked at.
    """

    rank: int
    boundary: int
    gates_passed: int
    phase: str
    waiting: bool
    process_state: str
    silent_s: float
    idle_s: float
    news_age_s: float
    stopped_s: float = 0.0
    stack: tuple[str, ...] = ()
    motion: str = ""
    asleep: bool = False
    count: int = 0
    """How much it has done since its boundary."""
    links: tuple[LinkState, ...] | None = ()
    in_own_code: bool = False
    keeps_lock: bool = False
    may_be_woken: bool = False
    locked: bool = False

    @property
    def waits_for_peers(self) -> bool:
        """Whether the rank waits for its peers, as far as is known.

        A rank that stands in the script's code within a backward waits for itself.
        """
        return self.waiting and not self.in_own_code

    @property
    def has_done_a_step(self) -> bool:
        """Whether it has passed a gate: before that, the loop in which it is may be one of set-up."""
        return self.boundary > 0 or self.gates_passed > 0

    @property
    def runs_in_circles(self) -> bool:
        """Whether it does the same again and again, and computed when its agent last spoke of it.

        A rank that also sleeps polls for something outside, such as an upload's end.
        """
        return self.motion == _CIRCLING and self.idle_s - self.news_age_s < _COMPUTES_S


@dataclass(frozen=True)
class Culprit:
    rank: int
    silent_s: float
    reason: str
    evidence: str
    stack: tuple[str, ...] = ()
    cut_off: bool = False
    """Whether it is the network that keeps it from the others."""


def threshold_s(median_step_s: float, policy: Policy) -> float:
    """Return after how much silence a rank may be to blame."""
    return policy.hang_step_factor * median_step_s + policy.hang_extra_s


def least_s(median_step_s: float, policy: Policy) -> float:
    """Return after how much silence a rank is to blame that nothing but itself could wake."""
    return policy.hang_step_factor * median_step_s + policy.hang_asleep_s


def find_culprit(vitals: Sequence[Vital], median_step_s: float, policy: Policy) -> Culprit | None:
    """Return the one rank to blame, or None as long as no rank must be blamed."""
    current = [v for v in vitals if v.news_age_s <= policy.stale_progress_s]
    limit_s = threshold_s(median_step_s, policy)
    waiting = [
        v for v in current if v.waits_for_peers and v.process_state not in CANNOT_GO_ON and v.phase not in NOT_TRAINING
    ]
    stopped = [
        v
        for v in current
        if v.process_state in CANNOT_GO_ON
        and v.stopped_s >= policy.stopped_s
        and v.phase not in (RankPhase.SET_UP, RankPhase.FINISHED)
    ]
    done = [v for v in current if v.phase == RankPhase.FINISHED]
    still = [v for v in current if v not in stopped and _is_still(v, limit_s)]
    # Where all are stopped, somebody has stopped the job, and lets it go on.
    if stopped and (waiting or done or (still and len(still) + len(stopped) == len(vitals))):
        v = _furthest_behind(stopped)
        others = (
            _ranks(waiting or done)
            if waiting or done
            else f"{_named(still)} {'is' if len(still) == 1 else 'are'} at a standstill"
        )
        reason = f"rank {v.rank} {CANNOT_GO_ON[v.process_state]} for {v.stopped_s:.1f} s while {others}"
        return _culprit(v, v.stopped_s, reason, vitals)
    silent = [v for v in current if _hangs(v, median_step_s, policy)]
    if silent:
        v = _furthest_behind(silent)
        own_limit_s = _limit_s(v, median_step_s, policy)
        witnesses = [w for w in waiting if w not in silent and w.silent_s >= min(own_limit_s, limit_s)]
        reason = (
            f"rank {v.rank} has shown no progress for {v.silent_s:.1f} s (a step takes {median_step_s:.2f} s, "
            f"the limit is {own_limit_s:.1f} s){_how(v)} while {_ranks(witnesses)}"
        )
        if witnesses:
            return _culprit(v, v.silent_s, reason, vitals)
    long_waiting = [v for v in waiting if v.silent_s >= limit_s]
    if long_waiting and len(long_waiting) + len(done) == len(current) == len(vitals) > 1:
        return _where_all_wait(long_waiting, done, limit_s, policy)
    return None


def _where_all_wait(waiting: Sequence[Vital], done: Sequence[Vital], limit_s: float, policy: Policy) -> Culprit | None:
    if any(v.idle_s < limit_s for v in waiting):
        return None  # somebody computes, inside of a backward for example
    # Who waits in a communication lets its other threads run.
    locked = [v for v in waiting if v.keeps_lock]
    if locked and len(locked) < len(waiting):
        v = _furthest_behind(locked)
        others = _ranks([each for each in waiting if not each.keeps_lock])
        reason = (
            f"rank {v.rank} has slept for {v.silent_s:.1f} s in C code that keeps the interpreter's lock while {others}"
        )
        return _culprit(v, v.silent_s, reason, waiting)
    links = {v.rank: v.links for v in (*waiting, *done)}
    # By a few answers alone another rank might seem to be cut off, or the one that it has let through a gate to be the odd one out.
    if not have_been_probed(links, policy) and max(v.silent_s for v in waiting) < limit_s + policy.explain_grace_s:
        return None
    if (cut := cut_off(links, policy)) is not None:
        (v,) = (v for v in (*waiting, *done) if v.rank == cut.rank)
        return replace(_culprit(v, v.silent_s, cut.reason, waiting), cut_off=True)
    if done:
        return _waits_too_long(waiting, policy)
    return _odd_one_out(waiting) or _waits_in_silence(waiting, policy) or _waits_too_long(waiting, policy)


def _waits_in_silence(waiting: Sequence[Vital], policy: Policy) -> Culprit | None:
    """Return the likeliest culprit where ranks wait in different lines and nothing is under way between any of them.

    A slow transfer, for which they might wait so behind their update, would show. What a program beside the job or another of a
    rank's threads waits for would not.
    """
    if any(v.may_be_woken for v in waiting):
        return None
    links = [link for v in waiting for link in v.links or ()]
    if not all(v.links and v.stack for v in waiting) or len({v.stack for v in waiting}) == 1:
        return None
    quiet_s = min(link.quiet_s for link in links)
    if quiet_s < policy.link_quiet_s:
        return None
    v = _at_rarest_line(waiting)
    reason = (
        f"all ranks wait, and nothing was sent between any of them for {quiet_s:.1f} s; rank {v.rank} waits at another line than "
        f"{_named([o for o in waiting if o.stack != v.stack])}"
    )
    return _culprit(v, v.silent_s, reason, waiting)


def _at_rarest_line(waiting: Sequence[Vital]) -> Vital:
    lines = Counter(v.stack for v in waiting)
    fewest = min(lines.values())
    return _furthest_behind([v for v in waiting if lines[v.stack] == fewest])


def _waits_too_long(waiting: Sequence[Vital], policy: Policy) -> Culprit | None:
    """Return the likeliest culprit once nobody is to wait longer. The job would stand for as long as torch lets it."""
    silent_s = min(v.silent_s for v in waiting)
    if not policy.hang_timeout_s or silent_s < policy.hang_timeout_s:
        return None
    v = _at_rarest_line(waiting)
    where = "nobody can tell because of which rank"
    if len({each.stack for each in waiting}) > 1:
        where = f"rank {v.rank} waits at another line than {_named([o for o in waiting if o.stack != v.stack])}"
    limit = f"{policy.hang_timeout_option} {policy.hang_timeout_s:g} s"
    return _culprit(v, v.silent_s, f"all ranks have waited for {silent_s:.1f} s ({limit}); {where}", waiting)


def _hangs(v: Vital, median_step_s: float, policy: Policy) -> bool:
    limit_s = _limit_s(v, median_step_s, policy)
    if v.process_state in CANNOT_GO_ON or v.phase in NOT_TRAINING or v.silent_s < limit_s:
        return False
    if v.runs_in_circles:
        return True  # inside of a backward, too, which counts as waiting as a whole
    return not v.waits_for_peers and (v.idle_s >= limit_s or v.silent_s >= policy.busy_hang_s)


def _is_still(v: Vital, limit_s: float) -> bool:
    """Return whether the rank may wait for a stopped rank in another library's communication, where waiting is not seen."""
    return v.phase not in NOT_TRAINING and v.silent_s >= limit_s and v.idle_s >= limit_s


def _limit_s(v: Vital, median_step_s: float, policy: Policy) -> float:
    limit_s = threshold_s(median_step_s, policy)
    if v.runs_in_circles:
        return limit_s if v.has_done_a_step else policy.busy_hang_s
    if v.asleep:
        return min(least_s(median_step_s, policy), limit_s) if v.locked else limit_s
    # Storage, evaluation and services have bad moments that no step time foretells. Until a step is done there is none, and what
    # runs may be a loop of set-up, such as one in which a rank alone writes or reads something for all.
    slack = v.phase in (RankPhase.AFTER, RankPhase.LEFT) or v.may_be_woken or not v.has_done_a_step
    return max(limit_s, policy.slack_hang_s) if slack else limit_s


def _odd_one_out(vitals: Sequence[Vital]) -> Culprit | None:
    """Return the rank that waits at another place than most, where all ranks wait: the most can be right, it waits in vain."""
    places = Counter(_place(v) for v in vitals)
    if len(places) == 1:
        return None
    fewest = min(places.values())
    v = _furthest_behind([v for v in vitals if places[_place(v)] == fewest])
    others = [o for o in vitals if _place(o) != _place(v)]
    where = ", ".join(sorted({o.phase for o in others}))
    has_majority = max(places.values()) > fewest
    what = "in a communication that others do not take part in" if has_majority else "and has come least far"
    reason = f"rank {v.rank} has waited for {v.silent_s:.1f} s ({v.phase}) {what}: {_ranks(others)} elsewhere ({where})"
    return _culprit(v, v.silent_s, reason, vitals)


def _place(v: Vital) -> tuple[object, ...]:
    """Return where a rank waits. After the step, ranks may wait in different lines for the same slow transfer."""
    return v.boundary, v.gates_passed, v.phase, v.stack if v.phase in (RankPhase.BODY, RankPhase.GATE) else ()


def _furthest_behind(candidates: Sequence[Vital]) -> Vital:
    return min(
        candidates, key=lambda v: (v.boundary, v.gates_passed, v.phase != RankPhase.BODY, v.count, -v.silent_s, v.rank)
    )


def _how(v: Vital) -> str:
    if v.runs_in_circles:
        return ", its code runs in circles,"
    if v.asleep:
        return ", it waits for something that only it could bring about,"
    return ""


def _culprit(v: Vital, silent_s: float, reason: str, vitals: Sequence[Vital]) -> Culprit:
    # The line where the user's own code called says more than one deep in a library.
    own = next((call for call in v.stack if "site-packages" not in call), v.stack[0] if v.stack else "")
    at = f"; it is in {own}" if own else ""
    return Culprit(v.rank, silent_s, reason + at, _evidence(vitals), v.stack)


def _ranks(waiting: Sequence[Vital]) -> str:
    return f"{_named(waiting)} {'waits' if len(waiting) == 1 else 'wait'}"


def _named(vitals: Sequence[Vital]) -> str:
    return f"{'rank' if len(vitals) == 1 else 'ranks'} {', '.join(str(v.rank) for v in vitals)}"


def _evidence(vitals: Sequence[Vital]) -> str:
    return "; ".join(
        f"rank {v.rank}: {v.boundary} steps done, {v.phase}{', waiting' if v.waits_for_peers else ''}, state {v.process_state}, "
        f"silent for {v.silent_s:.1f} s"
        for v in vitals
    )
