"""Decides, when all ranks stand still, at which boundary the new generation starts, and how each rank gets there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torchrelay.protocol.messages import Standing
from torchrelay.protocol.words.positions import JoinerAction, StandingPosition, SurvivorAction
from torchrelay.protocol.words.rank_words import ranks_with_verb


@dataclass(frozen=True)
class Cannot:
    reason: str


@dataclass(frozen=True)
class OutOfReach(Cannot):
    """The target is out of reach, but newer journals of the lost rank could reach it."""


_NO_WAY: dict[str, str] = {
    StandingPosition.ASTRAY: (
        "stands where it cannot go back to the beginning of its step: in the first iteration of a further training "
        "loop, or in a step that began in a loop that is over"
    ),
    StandingPosition.ONCE: (
        "was interrupted after optimizer step {step}, in a forward, backward, pipeline step or message that cannot be "
        "called again"
    ),
}
"""Positions that no way leads from, and why."""
_AT_GATE = (StandingPosition.GATE, StandingPosition.BEHIND)


@dataclass(frozen=True)
class Target:
    """The boundary where all go on.

    `actions`: by survivor's rank, as in messages.Plan. `offline`: no rank needs a communicator any more.
    """

    boundary: int
    actions: dict[int, str]
    offline: bool
    reason: str
    left: str = ""
    """The boundary at which survivors have left their loop, as in messages.Standing."""


@dataclass(frozen=True)
class JoinEntry:
    """The joiner's way in: `enter` or `shadow`, as in messages.Plan."""

    action: str
    reason: str


def decide_target(standings: Mapping[int, Standing]) -> Target | Cannot:
    """Decide where all survivors go on.

    A passed gate means that every rank has its gradients of that step: all finish the step. Otherwise all redo it.
    """
    if not standings:
        return Cannot("no rank is left that holds the job's state")
    boundary = max(s.gates_passed for s in standings.values())
    sharded = [rank for rank, s in sorted(standings.items()) if s.position == StandingPosition.SHARDED]
    if sharded:
        return Cannot(
            f"rank {sharded[0]} has used its sharded model for another forward pass since optimizer step {boundary}: a new "
            "process cannot do that again by itself"
        )
    for rank, s in sorted(standings.items()):
        if s.position in _NO_WAY:
            return Cannot(f"rank {rank} {_NO_WAY[s.position].format(step=boundary)}: {s.detail or 'no further detail'}")
    left = {rank: s for rank, s in sorted(standings.items()) if s.position == StandingPosition.LEFT}
    if left and (apart := _not_past(standings, left, boundary)):
        return Cannot(apart)
    places = {rank: s.place for rank, s in sorted(standings.items()) if s.boundary == boundary and s.place}
    if len(set(places.values())) > 1:
        return Cannot(
            f"ranks {', '.join(map(str, places))} are after step {boundary} in different loops, between two that train"
        )
    actions: dict[int, str] = {}
    for rank, s in sorted(standings.items()):
        action = _action(s, boundary)
        if action is None:
            return Cannot(
                f"rank {rank} has done {s.boundary} steps and stands in the next one ({s.position}, {s.gates_passed} updates "
                f"begun); it cannot get to the end of step {boundary}, where others are: {s.detail or 'no further detail'}"
            )
        actions[rank] = action
    offline = any(s.position == StandingPosition.FINISHED for s in standings.values())
    place = next((s.left for s in left.values()), "")
    return Target(boundary, actions, offline, _reason(boundary, actions, offline), place)


def _not_past(standings: Mapping[int, Standing], left: Mapping[int, Standing], boundary: int) -> str:
    """Return why a loop that some ranks have left by its head cannot be gone past; empty if it can.

    A rank that may still be in the loop would do collectives again, or for the first time, that these have done.
    """
    first, place = next((rank, s.left) for rank, s in left.items())
    for rank, s in sorted(standings.items()):
        is_past = s.left == place if rank in left else s.position == StandingPosition.FINISHED or s.boundary == boundary
        if not is_past or (rank not in left and s.place == place):
            return f"rank {first} has left the loop that rank {rank} may be in: {s.detail or 'no further detail'}"
    return ""


def stuck_alone(standings: Mapping[int, Standing]) -> dict[int, str]:
    """Return the ranks, and why, that cannot go on from where they stand, while others can.

    A process that took over such a rank would not be in the call that it is stuck in.
    """
    stuck = {rank: s for rank, s in sorted(standings.items()) if s.position == StandingPosition.ONCE}
    if len(stuck) == len(standings):
        return {}
    why = _NO_WAY[StandingPosition.ONCE]
    return {rank: f"rank {rank} {why.format(step=s.gates_passed)}" for rank, s in stuck.items()}


def still_at_gate(standings: Mapping[int, Standing], target: int) -> list[int]:
    """Return the ranks whose gradients are complete and whose update is still to come, while others have made theirs.

    They hold the tensors of neither side of it: a rank that needs what only they have would get it without the update.
    """
    return [rank for rank, s in sorted(standings.items()) if s.position in _AT_GATE and s.gates_passed < target]


def _action(s: Standing, target: int) -> str | None:
    if s.position == StandingPosition.FINISHED:
        return SurvivorAction.STAY if s.gates_passed == target else None
    if s.boundary < 0:
        return None
    if s.boundary == target:
        if s.position == StandingPosition.BEHIND:
            return None  # the loop that it would go back to is over
        return SurvivorAction.STAY if s.position == StandingPosition.HEAD else SurvivorAction.REWIND
    if s.boundary == target - 1 and (s.gates_passed == target or s.position in _AT_GATE):
        return SurvivorAction.FORWARD
    return None


def _reason(boundary: int, actions: Mapping[int, str], offline: bool) -> str:
    what = {  # of one rank, of several
        SurvivorAction.FORWARD: (f"finishes step {boundary}", f"finish step {boundary}"),
        SurvivorAction.REWIND: (
            f"goes back and does step {boundary + 1} again",
            f"go back and do step {boundary + 1} again",
        ),
        SurvivorAction.STAY: ("is there", "are there"),
    }
    parts = []
    for action, (one, several) in what.items():
        ranks = [rank for rank, its in sorted(actions.items()) if its == action]
        if ranks:
            parts.append(ranks_with_verb(ranks, one, several))
    if offline:
        parts.append("some script has reached its end, so no communicator is needed any more")
    return f"all meet after step {boundary}: " + "; ".join(parts)


def decide_entry(
    rank: int, target: int, boundaries: Collection[int], gates: Collection[int], donor: Standing | None = None
) -> JoinEntry | Cannot:
    """Decide how the lost rank gets to the target. `donor`: the rank that gives the tensors.

    `boundaries` and `gates`: what the journal of the rank's last worker holds.
    A donor that is still on its way to the target may have tensors to write there, and it cannot be known that it has none.
    """
    by_shadow = target - 1 in boundaries and target - 1 in gates
    if target in boundaries and donor is not None and donor.boundary < target:
        if not by_shadow:
            return Cannot(
                f"rank {rank} was through with step {target}, and the rank that would give its tensors is not: "
                "what it has yet to write after its optimizer step would be missing"
            )
        return JoinEntry(
            JoinerAction.SHADOW,
            f"rank {rank} goes through step {target} from its update on, since the rank that gives its tensors is not "
            "through with what follows the optimizer step",
        )
    if target in boundaries:
        return JoinEntry(JoinerAction.ENTER, f"rank {rank} goes on after step {target}, as its journal has it")
    if by_shadow:
        return JoinEntry(
            JoinerAction.SHADOW,
            f"rank {rank} goes through step {target} from its update on, since its journal ends after step {target - 1}",
        )
    held = ", ".join(map(str, sorted(boundaries))) or "none"
    at_gates = ", ".join(map(str, sorted(gates))) or "none"
    return OutOfReach(
        f"the journal of rank {rank} has the state after steps {held}, and before the updates of steps {at_gates}: "
        f"the state after step {target} cannot be made of that"
    )
