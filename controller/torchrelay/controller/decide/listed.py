"""Ranks in a sentence: of a large job not all of them."""

from __future__ import annotations

from collections.abc import Sequence

NAMED = 16


def listed(ranks: Sequence[int]) -> str:
    """`0, 1, 2`; of many the first ones, and how many more there are."""
    named = ", ".join(map(str, ranks[:NAMED]))
    return f"{named} and {len(ranks) - NAMED} more" if len(ranks) > NAMED else named
