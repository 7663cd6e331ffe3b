"""A rank is lost in the middle of a large message: gloo tells nobody who waits for the other half."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "half_received.py", 2


@pytest.mark.core
def test_who_waits_for_the_other_half_of_a_message_comes_to_a_stand(undisturbed: Undisturbed, tmp_path: Path) -> None:
    struck = tmp_path / "struck"
    run = relay(tmp_path, SCRIPT, ranks=RANKS, environment={"STRUCK": str(struck)})
    assert struck.exists()
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, [], 1)
    assert "gloo had left asleep" in run.stderr, run.told()
