"""Something is wrong with torchrelay itself: the rank that this happens to loses its protection, and its script nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import relay
from support.training import differences

SCRIPT, RANKS = "sabotaged.py", 2
SHIM = "torchrelay.shim"


@pytest.mark.slow
@pytest.mark.parametrize(
    "where",
    few(
        3,
        [
            "journaling.Writer.boundary:3",
            "updates.Updates.passed:4",
            "adapters.data_loader.-._advance:5",
            "adapters.data_loader.-._track:1",
            "collective_records.CollectiveRecords.add:6",
            "collectives._Call.take:4",
            "collectives.Collectives._run:0",
            "collectives.Collectives._run:5",
            "comms.Communicators.connecting:0",
            "comms.Communicators.connecting:1",
            "draws.Draws.draw:8",
            "draws.Draws.noted:3",
            "early_updates.EarlyUpdates.keep:2",
            "early_updates.EarlyUpdates.learn:0",
            "early_updates.EarlyUpdates.learn:5",
            "engine.Engine.ddp_built:0",
            "engine.Engine.mode:20",
            "engine.Engine.takes_part:30",
            "engine.Engine.waiting:9",
            "journaling.Writer.gate:0",
            "journaling.Writer.gate:4",
            "journaling.Writer.walk:3",
            "late_writes.LateWrites.note:2",
            "left_loops.LeftLoops.ended:1",
            "left_loops.LeftLoops.found:9",
            "loops.LoopTracker._prune:3",
            "loops.LoopTracker.around_step:5",
            "loops.LoopTracker.computing:4",
            "loops.LoopTracker.loader_created:1",
            "messages_between.Messages._exchanged:2",
            "replicas.ReplicaChecks.at_boundary:1",
            "reporting.Reporter.at_boundary:2",
            "reporting.Reporter.at_gate:2",
            "runtime.Runtime._finish:0",
            "updates.Updates._after_step:7",
            "updates.Updates.gate:5",
            "updates.Updates._wait:5",
        ],
    ),
)
def test_an_exception_of_torchrelay_does_not_reach_the_script(
    where: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    function, after = where.split(":")
    module, cls, name = function.rsplit(".", 2)
    broken = f"{SHIM}.{module}", cls, name, after
    run = relay(tmp_path, SCRIPT, *broken, ranks=RANKS, spares=0)
    assert run.status == 0, run.told()
    assert "sabotaged" in run.stderr, "the function that is broken was never called"
    assert "broken on purpose" in run.stderr, run.told()
    assert differences(undisturbed(SCRIPT, "-", "-", "-", "0", ranks=RANKS), run.out, RANKS) == [], run.told()
