"""Which rungs a migration that ended well has taken, and what that cost. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from torchrelay.controller.kube.decide.ladder import REFUSED, TAKEN, Tried
from torchrelay.protocol.events import MigrationFinished
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.words.phases import ROLLBACK


def rung_of(leaver: str, joiner: str) -> str:
    """By whether the joiner is in the leaver's pod. Workers' names are `POD:UID.NUMBER`."""
    return kube.RESPAWN if joiner.rpartition(".")[0] == leaver.rpartition(".")[0] else kube.NEXT_SPARE


def cost(seconds: float, steps_redone: int) -> str:
    return f"{seconds:.1f} s without training, {steps_redone} step{'s' * (steps_redone != 1)} done again"


def lost_ranks(what: MigrationFinished) -> dict[int, str]:
    """Those that were lost, with who has each now. Where all have gone back to copies, the first one alone is told."""
    moved = dict(zip(what.ranks, what.spares))
    return {what.rank: moved[what.rank]} if what.kind == ROLLBACK and what.rank in moved else moved


def taken_rungs(what: MigrationFinished, leavers: Mapping[int, str], no_spare: Mapping[int, str]) -> list[Tried]:
    """`leavers`: who had each rank before. `no_spare`: by rank, why no spare took it over, where that is known."""
    rungs: dict[str, list[int]] = {}
    for rank, joiner in lost_ranks(what).items():
        rungs.setdefault(rung_of(leavers.get(rank, ""), joiner), []).append(rank)
    price = cost(sum(what.downtime_s.values()), what.steps_redone)
    tried = []
    if kube.NEXT_SPARE in rungs:
        tried.append(Tried(kube.NEXT_SPARE, TAKEN, f"a spare has {_who(rungs[kube.NEXT_SPARE])}; {price}"))
    elif kube.RESPAWN in rungs:
        why = next((no_spare[r] for r in rungs[kube.RESPAWN] if no_spare.get(r)), "no spare has come sooner")
        tried.append(Tried(kube.NEXT_SPARE, REFUSED, why))
    if kube.RESPAWN in rungs:
        again = f"{_who(rungs[kube.RESPAWN])} went on in the same pod, which has started the process again; {price}"
        tried.append(Tried(kube.RESPAWN, TAKEN, again))
    return tried


def _who(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, sorted(ranks)))}"
