"""What a thread of the script writes beside training does not keep a rank from being replaced, nor from going back."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cells import few
from support.relay_run import assert_unharmed, plain, relay

SCRIPT, RANKS = "drawn_bar.py", 2
BIG = {"SIZE": "200000"}
"""Some megabytes: the thread draws while they are on their way."""


@pytest.mark.slow
@pytest.mark.parametrize("phase", few(1, ["after-step", "backward"]))
def test_a_rank_whose_bar_a_thread_draws_is_replaced(tmp_path: Path, phase: str) -> None:
    reference = plain(tmp_path / "plain", SCRIPT, ranks=RANKS, environment=BIG)
    fault = f"kill:rank=0,step=8,phase={phase}"
    run = relay(tmp_path / "relay", SCRIPT, ranks=RANKS, inject=[fault], environment=BIG)
    assert_unharmed(run, reference, RANKS, [fault], 1)
