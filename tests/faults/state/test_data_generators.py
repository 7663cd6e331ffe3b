"""Generators of the script's own around its data are entered in the middle, and go back where the rank does."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import assert_unharmed, relay

RANKS, SCRIPT = 2, "own_generators.py"
FAULTS = ("kill:rank=0,step=8,phase=backward", "kill:rank=1,step=13,phase=after-step")


@pytest.mark.slow
@pytest.mark.parametrize("kind", few(1, ["ahead", "grouped", "meters"]))
def test_ranks_go_on_in_the_middle_of(kind: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, spares=2, inject=FAULTS)
    assert_unharmed(run, undisturbed(SCRIPT, kind, ranks=RANKS), RANKS, list(FAULTS), 2)


@only_in_long
@pytest.mark.parametrize(
    "faults",
    few(
        1,
        [
            ("kill:rank=1,step=3,phase=forward", "kill:rank=0,step=7,phase=after-step"),
            ("kill:rank=1,step=2,phase=after-step", "kill:rank=0,step=13,phase=forward"),
            ("kill:rank=1,step=1,phase=after-step", "kill:rank=0,step=9,phase=data"),
        ],
    ),
)
def test_a_draw_that_begins_an_epoch_of_kept_workers_is_done_again(
    faults: tuple[str, str], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, "mixed", ranks=RANKS, spares=2, inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, "mixed", ranks=RANKS), RANKS, list(faults), 2)


@only_in_long
@pytest.mark.parametrize("kind", few(1, ["endless", "restarted", "paired", "parts", "play", "bar"]))
def test_so_they_do_in(kind: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, spares=2, inject=FAULTS)
    assert_unharmed(run, undisturbed(SCRIPT, kind, ranks=RANKS), RANKS, list(FAULTS), 2)


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize("kind", few(1, ["loop", "kept"]))
def test_a_rank_that_has_its_batches_from_another_one_is_replaced(
    kind: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """In place of a rank that does not read, no code of the generator runs in a new process: nobody would answer."""
    script = "read_by_one.py"
    faults = ["kill:rank=1,step=5,phase=backward", "kill:rank=0,step=8,phase=forward", "kill:rank=1,step=13,phase=data"]
    run = relay(tmp_path, script, kind, ranks=RANKS, spares=len(faults), inject=faults)
    assert_unharmed(run, undisturbed(script, kind, ranks=RANKS), RANKS, faults, len(faults))
