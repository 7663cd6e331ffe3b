"""Which spare takes over?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SpareState:
    """`warm`: has imported torch; `stopped`: the kernel says that it does not run."""

    worker: str
    node: str
    warm: bool
    stopped: bool = False
    quarantined: str = ""
    """Why its device or node must not be used."""
    company: int = 0
    """How many ranks live in its pod, where a pod has several processes: pods that nobody lives in are kept whole."""
    doubtful: bool = False
    """Whether the links of its node may be down."""
    together: bool = False
    """Whether all that hold what the rank does would be on one machine, with the rank there."""


@dataclass(frozen=True)
class ChosenSpare:
    """`worker` is empty if there is none; `soon`: one is still starting."""

    worker: str
    reason: str
    soon: bool = False


def choose_spare(spares: Sequence[SpareState], rank: int, node: str, coming: int = 0) -> ChosenSpare:
    """On the node that the rank was on, if there is one, and its links work: paths and caches are the same there.

    Before that counts, that not all who hold what the rank does come to be on one machine.

    `coming`: spares that are being made, and have not said anything yet.
    """
    usable = [s for s in spares if not s.stopped and not s.quarantined]
    warm = [s for s in usable if s.warm]
    if warm:
        chosen = min(warm, key=lambda s: (s.doubtful, s.together, s.node != node, -s.company, s.worker))
        shunned = [s for s in warm if s.node == node]
        because = f"since {node or 'its node'} has none"
        if shunned:
            alone = f"so that the loss of {node} does not end the job"
            because = f"since the links of {node} may be down" if shunned[0].doubtful else alone
        where = "on the same node" if chosen.node == node else f"on {chosen.node}, {because}"
        left = len(usable) - 1
        return ChosenSpare(
            chosen.worker, f"spare {chosen.worker} takes over rank {rank}, {where}; {left} left after that"
        )
    if usable:
        return ChosenSpare("", f"rank {rank} waits for a spare that is still starting", soon=True)
    if coming:
        return ChosenSpare("", f"rank {rank} waits for a spare that is being made ({coming} are)", soon=True)
    if barred := [s for s in spares if s.quarantined]:
        return ChosenSpare("", f"no spare is left for rank {rank}: {len(barred)} are on a device or node in quarantine")
    if spares:
        return ChosenSpare("", f"no spare is left for rank {rank}: {len(spares)} are stopped")
    return ChosenSpare("", f"no spare is left for rank {rank}")
