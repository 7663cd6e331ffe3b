"""Samplers that shuffle an array of their own, below others that wrap them: a new process goes on in the epoch's order."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "wrapped_sampler.py", 2


@pytest.mark.parametrize(
    ("workers", "fault"),
    [
        ("1", "stop:rank=1,step=5,phase=forward"),
        ("-1", "kill:rank=1,step=12,phase=forward"),
        ("0", "kill:rank=0,step=12,phase=after-step"),
    ],
)
def test_the_numbers_are_those_without_a_loss(
    workers: str, fault: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, workers, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, workers, ranks=RANKS), RANKS, [fault], 1)
