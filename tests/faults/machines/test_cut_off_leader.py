"""The machine that leads is cut off from the others: they go on without it, and none of its processes outlives its lease."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.cli_harness import TIMEOUT_S, Cli, eventually
from support.machines import Fleet, descendants
from support.network import Network, why_not
from support.training import differences

SCRIPT, RANKS = "ddp.py", 3
LEASE_S = 25.0
NOTICED_S = 7.0
"""An agent that is silent for so long is not heard any more: then the one that led has too few machines."""
MOST_S = 15.0
"""For what takes time on a busy machine."""


@pytest.mark.skipif(bool(why := why_not()), reason=why)
@pytest.mark.slow
@pytest.mark.parametrize("comes_back", few(1, [True, False]))
def test_a_leader_that_is_cut_off_ends_its_processes_and_the_others_go_on_bitwise(
    comes_back: bool, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    reference, holds = undisturbed(SCRIPT, ranks=RANKS), tmp_path / "holds"
    holds.mkdir()
    lease = "600s" if comes_back else f"{LEASE_S:g}s"
    with Network(RANKS) as network, Cli(tmp_path) as cli:
        held = {"HOLD_STEPS": "20,45", "HOLD_FOLDER": str(holds)}
        fleet = Fleet(cli, f"--lease={lease}", "--no-refill", spares=(0, 1, 0), script=SCRIPT, network=network, **held)
        eventually("step 20", lambda: fleet.boundary(1) == 19)
        leader = fleet.commands[0]
        its = descendants(leader.pid)
        network.cut_off(0)
        cut_s = time.monotonic()
        (holds / "20").touch()
        if comes_back:
            eventually("its rank lives elsewhere", lambda: fleet.moved(1) == [0])
            assert leader.poll() is None
            network.join(0)
        leader.wait(TIMEOUT_S)
        took_s = time.monotonic() - cut_s
        assert [pid for pid in its if Path(f"/proc/{pid}").exists()] == []
        if not comes_back:
            eventually("its rank lives elsewhere", lambda: fleet.moved(1) == [0])
        (holds / "45").touch()
        said = fleet.end(*fleet.commands)
    assert [command.returncode for command in fleet.commands] == [1, 0, 0], said
    if not comes_back:
        assert "nothing was heard of whoever leads the job for" in said
        assert LEASE_S <= took_s <= NOTICED_S + LEASE_S + MOST_S, said
        assert fleet.boundary(0) <= 20, said
    assert [e["restart"] for e in fleet.events(1, "job_restarted")] == [], said
    assert differences(reference, fleet.out, RANKS) == [], said
