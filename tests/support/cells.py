"""Tests with many cells that differ in one value: a few of them in `make test`, all in `make test-long`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

Cell = TypeVar("Cell")


def few(count: int, cells: Sequence[Cell]) -> list[Cell]:
    """The first `count` ones; all where TORCHRELAY_TEST_ROUNDS is set. To be used with the mark `slow`."""
    return list(cells) if "TORCHRELAY_TEST_ROUNDS" in os.environ else list(cells[:count])
