"""Gates of many ranks, played message by message: what the model of `bench scaling` is held against."""

from __future__ import annotations

import math
import random

from torchrelay.cli.scaling.model import rounds


def play_gates(
    ranks: int, gates: int, round_s: float, latency_s: float, late_share: float, late_s: float, seed: int
) -> list[float]:
    """Return the seconds of each of so many gates: until the last rank is through, of which all start at once.

    A message is late by `late_s` with the probability `late_share`: its packet was lost, and is sent again.
    """
    chance, took_s = random.Random(seed), []
    distances = [1 << k for k in range(rounds(ranks))]
    for _ in range(gates):
        at_s = [0.0] * ranks
        for distance in distances:
            late = _drawn(chance, ranks, late_share)
            heard = [at_s[rank - distance] + latency_s for rank in range(ranks)]
            for rank in late:
                heard[rank] += late_s
            at_s = [max(own, other) + round_s for own, other in zip(at_s, heard, strict=True)]
        took_s.append(max(at_s))
    return took_s


def _drawn(chance: random.Random, of: int, share: float) -> list[int]:
    """Return which of them it strikes, each with the same probability, in time that grows with how many these are."""
    found: list[int] = []
    if share <= 0:
        return found
    place = -1
    while True:
        place += 1 + int(math.log(1.0 - chance.random()) / math.log1p(-min(share, 0.999999)))
        if place >= of:
            return found
        found.append(place)
