"""Which faults strike which ranks, and when: drawn once from a seed, and the same for all arms. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

EARLIEST = 0.1
LATEST = 0.9
"""As parts of the undisturbed training: before there is no checkpoint yet, and after it a recovery would not be seen."""


class RaceFaultKind(str, Enum):
    """What a fault does. NODE: half of the ranks are killed at once. PLANNED: a notice that the rank's place is wanted."""

    KILL = "kill"
    STOP = "stop"
    NODE = "node"
    PLANNED = "planned"


@dataclass(frozen=True)
class RaceFault:
    """One fault. `at`: when, as a part of the time from the first to the last step of the undisturbed run."""

    kind: RaceFaultKind
    ranks: tuple[int, ...]
    at: float

    @property
    def name(self) -> str:
        """Return the fault in words."""
        return f"{self.kind.value} of rank{'s' if len(self.ranks) > 1 else ''} {', '.join(map(str, self.ranks))}"


def draw(seed: int, count: int, ranks: int, kinds: Sequence[RaceFaultKind]) -> list[RaceFault]:
    """Draw `count` faults in the order of their times. Each kind comes about as often as the others, in random order."""
    chance = random.Random(seed)
    drawn: list[RaceFaultKind] = []
    while len(drawn) < count:
        drawn += chance.sample(list(kinds), len(kinds))
    times = sorted(chance.uniform(EARLIEST, LATEST) for _ in range(count))
    return [RaceFault(kind, _ranks(chance, kind, ranks), at) for kind, at in zip(drawn, times)]


def _ranks(chance: random.Random, kind: RaceFaultKind, ranks: int) -> tuple[int, ...]:
    if kind is not RaceFaultKind.NODE:
        return (chance.randrange(ranks),)
    half = max(ranks // 2, 1)
    first = half * chance.randrange(ranks // half)
    return tuple(range(first, first + half))
