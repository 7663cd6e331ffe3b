"""Ranks in sentences."""

from __future__ import annotations

from collections.abc import Sequence

WAITS_FOR_SPARE = "it moves as soon as there is one"
"""The end of the reason of a move that is still wanted."""
JOB_OVER = "the job was over"
"""The beginning of the reason of a move that the end of its job has overtaken."""


def ranks_in_words(numbers: Sequence[int]) -> str:
    """Return `rank 1`, or `ranks 0, 2`."""
    return f"rank{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def ranks_with_verb(numbers: Sequence[int], one: str, several: str) -> str:
    """Return `rank 1 goes back`, or `ranks 0, 2 go back`. `one`, `several`: the verb, and what follows it."""
    return f"{ranks_in_words(numbers)} {one if len(numbers) == 1 else several}"
