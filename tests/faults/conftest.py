"""Undisturbed runs, each made once per session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.relay_run import plain

Undisturbed = Callable[..., Path]


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
