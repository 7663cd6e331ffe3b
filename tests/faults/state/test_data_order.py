"""The order of the data goes on being chosen within steps: ranks draw again what they had drawn, and a new one is led there."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

RANKS, SCRIPT = 2, "draws.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "faults"),
    few(
        1,
        [
            pytest.param(
                "lazy", ("kill:rank=1,step=3,phase=backward", "kill:rank=0,step=7,phase=gate"), id="part after part"
            ),
            pytest.param("end", ("kill:rank=1,step=4,phase=gate", "kill:rank=0,step=11,phase=gate"), id="at the end"),
            pytest.param(
                "modulo",
                ("kill:rank=0,step=2,phase=backward", "kill:rank=1,step=3,phase=backward"),
                id="an update in a while",
            ),
            pytest.param("endless", ("kill:rank=1,step=13,phase=backward",), id="without an end"),
        ],
    ),
)
def test_every_rank_draws_what_it_would_have_drawn(
    kind: str, faults: tuple[str, ...], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, spares=len(faults), inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, kind, ranks=RANKS), RANKS, faults, len(faults))
