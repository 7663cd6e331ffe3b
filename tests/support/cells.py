"""Tests with many cells that differ in one value: a few of them in `make test-all`, all in `make test-long`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

Cell = TypeVar("Cell")
Test = TypeVar("Test", bound=Callable[..., Any])
_ALL = "TORCHRELAY_TEST_ROUNDS" in os.environ


def few(count: int, cells: Sequence[Cell]) -> list[Cell]:
    """The first `count` ones; all where TORCHRELAY_TEST_ROUNDS is set. To be used with the mark `slow`."""
    return list(cells) if _ALL else list(cells[:count])


def only_in_long(test: Test) -> Test:
    """Leave a test that takes a minute to `make test-long`: others in `make test-all` go through the same mechanism."""
    return pytest.mark.slow(pytest.mark.skipif(not _ALL, reason="it takes a minute: `make test-long` runs it")(test))
