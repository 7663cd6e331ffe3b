"""A rank is lost while averages of the weights stand in their place: others have the weights in copies alone, or have moved on."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "averages_in_place.py", 2
AT = [
    ("data", "together", "put:0"),
    ("data", "alone", "put:1"),
    ("counted", "together", "evaluated:1"),
    ("each", "together", "put:1"),
    ("counted", "alone", "evaluated:0"),
    ("exchanged", "alone", "put:0"),
    ("data", "first", "put:0"),
    ("counted", "first", "evaluated:0"),
    ("exchanged", "first", "put:0"),
    ("data", "together", "evaluated:0"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("put", "how", "strike"), few(1, AT))
def test_the_rank_that_is_lost_meanwhile_leaves_no_trace(
    put: str, how: str, strike: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    struck = tmp_path / "struck"
    environment = {"STRIKE": strike, "STRUCK": str(struck)}
    run = relay(tmp_path, SCRIPT, put, how, ranks=RANKS, environment=environment)
    assert struck.exists(), run.told()
    assert_unharmed(run, undisturbed(SCRIPT, put, how, ranks=RANKS), RANKS, [], 1)


BEHIND = [
    ("data", "alone", "kill:rank=0,step=5,phase=forward"),
    ("counted", "first", "kill:rank=1,step=5,phase=data"),
    ("exchanged", "alone", "kill:rank=1,step=5,phase=data"),
    ("counted", "together", "kill:rank=0,step=5,phase=data"),
    ("data", "first", "kill:rank=1,step=4,phase=after-step"),
    ("exchanged", "first", "kill:rank=0,step=5,phase=forward"),
]


@only_in_long
@pytest.mark.parametrize(("put", "how", "fault"), few(1, BEHIND))
def test_a_rank_that_is_lost_around_it_leaves_no_trace(
    put: str, how: str, fault: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, put, how, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, put, how, ranks=RANKS), RANKS, [fault], 1)
