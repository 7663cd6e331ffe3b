"""Modules that training itself puts into a model are made in the process that takes over a rank, and in the one behind it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "growing.py", 2
FAULTS = [
    ["kill:rank=1,step=13,phase=backward", "kill:rank=1,step=20,phase=after-step"],
    ["kill:rank=0,step=18,phase=after-step", "kill:rank=1,step=27,phase=data"],
]
CELLS = [*itertools.product(("stages", "exchanged"), FAULTS)]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "faults"), few(1, CELLS))
def test_the_numbers_are_those_without_a_loss(
    how: str, faults: list[str], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, how, ranks=RANKS, spares=2, inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, how, ranks=RANKS), RANKS, faults, 2)
