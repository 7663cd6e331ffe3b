"""Models, optimizers, loaders and process groups that are made anew in each iteration of an outer loop."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "made_anew.py", 2
FOLDS = {
    "each fold": ["kill:rank=0,step=4,phase=after-step", "kill:rank=1,step=11,phase=backward"],
    "between folds": ["kill:rank=0,step=8,phase=after-step", "kill:rank=1,step=16,phase=after-step"],
    "second fold": ["kill:rank=1,step=9,phase=forward", "kill:rank=0,step=13,phase=after-step"],
    "third fold": ["kill:rank=0,step=18,phase=gate", "kill:rank=1,step=22,phase=after-step"],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "faults"),
    few(
        1,
        [
            pytest.param(what, faults, id=f"{place}, {' and '.join(('models', *what))}")
            for odd in (0, 1)
            for number, (place, faults) in enumerate(FOLDS.items())
            for what in [("groups",) if (number + odd) % 2 else ()]
        ],
    ),
)
def test_a_rank_is_replaced_in_any_fold(
    what: tuple[str, ...], faults: list[str], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, *what, ranks=RANKS, spares=len(faults), inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, *what, ranks=RANKS), RANKS, faults, len(faults))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "lost"),
    few(
        1,
        [
            pytest.param(("even",), 1, id="same form"),
            pytest.param(("large", "apart"), 1, id="large, from rank 0"),
            pytest.param(("large", "apart", "meet"), 1, id="large, before the next loop"),
            pytest.param((), 0, id="another form"),
            pytest.param(("large",), 0, id="large, drawn alike"),
        ],
    ),
)
def test_a_rank_is_replaced_that_is_lost_once_the_next_model_is_made(
    what: tuple[str, ...], lost: int, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    struck = tmp_path / "struck"
    strike = {"STRIKE": f"made1:{lost}", "STRUCK": str(struck)}
    run = relay(tmp_path, SCRIPT, *what, ranks=RANKS, environment=strike)
    assert struck.exists()
    assert_unharmed(run, undisturbed(SCRIPT, *what, ranks=RANKS), RANKS, [], 1)
