"""Undisturbed runs, each made once per session."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from support.relay_run import plain

Undisturbed = Callable[..., Path]

# Before tests are collected, and by whom starts the processes that share them: they must agree on the tests' names.
os.environ.setdefault("TORCHRELAY_TEST_SEED", str(random.SystemRandom().randrange(1_000_000)))


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """`undisturbed(script, *args, ranks=N)`: the folder with the results of that script under plain torchrun."""
    made: dict[tuple[str, ...], Path] = {}

    def of(script: str, *args: str, ranks: int) -> Path:
        key = (script, str(ranks), *args)
        if key not in made:
            made[key] = plain(tmp_path_factory.mktemp("plain"), script, *args, ranks=ranks)
        return made[key]

    return of
