"""Could a rank be replaced now? Known before a spare is spent on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchrelay.protocol.messages import Gap
from torchrelay.protocol.names import BARS


@dataclass(frozen=True)
class Replaceable:
    """`reason` says why not."""

    yes: bool
    reason: str = ""


def replaceable(gaps: Mapping[int, Sequence[Gap]]) -> Replaceable:
    """`gaps`: those of each rank's latest report.

    What bars one rank bars all: the same script runs everywhere, a survivor's wrapper that refuses a new communicator
    stops a migration as surely as a joiner that finds no way in, and so would the next spare.
    """
    barred = {rank: gap for rank in sorted(gaps) for gap in gaps[rank] if gap.effect == BARS}
    if not barred:
        return Replaceable(True)
    rank, gap = next(iter(barred.items()))
    where = f" ({gap.file}:{gap.line})" if gap.file and f"{gap.file}:{gap.line}" not in gap.text else ""
    return Replaceable(False, f"rank {rank}: {gap.text}{where}")
