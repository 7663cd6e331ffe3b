"""Ranks stand before an update with suspect numbers: does the step go on, is it done elsewhere, or does the job end?"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torchrelay.protocol.messages import NumberAlarm
from torchrelay.protocol.options.numbers import LOSS, RETRY, STOP

GO_ON = "go on"


@dataclass(frozen=True)
class NumberVerdict:
    """`action`: GO_ON, or one of numbers.STOP and numbers.RETRY, that of `ranks`."""

    action: str
    ranks: tuple[int, ...]
    reason: str


def decide_numbers(
    alarms: Mapping[int, Sequence[NumberAlarm]], world_size: int, tried: Collection[int], cannot: str
) -> NumberVerdict:
    """`alarms`: those of one step, by rank. `tried`: ranks whose part of this step another device has done already.

    `cannot`: why no rank could be replaced now, or empty.
    """
    all_ranks = tuple(sorted(alarms))
    several = len(all_ranks) > 1
    said = "; ".join(
        f"rank {rank}: {alarm.text}" if several else alarm.text for rank in all_ranks for alarm in alarms[rank]
    )
    if any(a.action == STOP for rank in all_ranks for a in alarms[rank]):
        return NumberVerdict(STOP, all_ranks, f"{said}; stopped before the update")
    suspects = _suspects(alarms)
    if not suspects:
        return NumberVerdict(GO_ON, all_ranks, said)
    again = sorted(set(suspects) & set(tried))
    if again:
        listed = ", ".join(map(str, again))
        why = f"the same on another device (rank {listed}): the data or the model has made it, and no device"
        return NumberVerdict(GO_ON, all_ranks, f"{said}; {why}")
    if len(suspects) == world_size and world_size > 1:
        return NumberVerdict(GO_ON, all_ranks, f"{said}; it is the same for all ranks, so no device is to be blamed")
    if cannot:
        return NumberVerdict(
            STOP, suspects, f"{said}; another device cannot try it ({cannot}): stopped before the update"
        )
    return NumberVerdict(RETRY, suspects, f"{said}; the step is done again on another device")


def _suspects(alarms: Mapping[int, Sequence[NumberAlarm]]) -> tuple[int, ...]:
    """Who to blame among those that want a retry: one rank's loss is in everybody's gradients, not the other way round."""
    wanting = {rank: [a for a in found if a.action == RETRY] for rank, found in alarms.items()}
    by_loss = tuple(sorted(rank for rank, found in wanting.items() if any(a.what == LOSS for a in found)))
    return by_loss or tuple(sorted(rank for rank, found in wanting.items() if found))
