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
        1,
        [
            "journal.writer.Writer.boundary:3",
            "step.updates.update_gate.UpdateGate.passed:4",
            "data.data_loader.-._advance:5",
            "data.data_loader.-._track:1",
            "comm.collective_records.CollectiveRecords.add:6",
            "comm.collective_call.CollectiveCall.take:4",
            "comm.collectives.Collectives._run:0",
            "comm.collectives.Collectives._run:5",
            "comm.generations.breaking.Breaking.connecting:0",
            "comm.generations.breaking.Breaking.connecting:1",
            "data.iterator_replay.IteratorReplay.draw:8",
            "data.iterator_replay.IteratorReplay.noted:3",
            "step.updates.early_updates.EarlyUpdates.keep:2",
            "step.updates.early_updates.EarlyUpdates.learn:0",
            "step.updates.early_updates.EarlyUpdates.learn:5",
            "step.engine.Engine.ddp_built:0",
            "step.collective_side.CollectiveSide.mode:20",
            "step.engine.Engine.takes_part:30",
            "step.engine.Engine.waiting:9",
            "journal.writer.Writer.gate:0",
            "journal.writer.Writer.gate:4",
            "journal.writer.Writer.walk:3",
            "step.updates.late_writes.LateWrites.note:2",
            "step.left_loops.LeftLoops.ended:1",
            "step.left_loops.LeftLoops.is_left:9",
            "step.left_loops.LeftLoops.pass_over:4",
            "instrument.loop_tracker.LoopTracker._prune:3",
            "instrument.loop_tracker.LoopTracker.around_step:5",
            "instrument.loop_tracker.LoopTracker.computing:4",
            "instrument.loop_tracker.LoopTracker.loader_created:1",
            "comm.point_to_point.Messages._exchanged:2",
            "replicas.replica_checks.ReplicaChecks.at_boundary:1",
            "observe.protection_report.ProtectionReporter.at_boundary:2",
            "observe.protection_report.ProtectionReporter.at_gate:2",
            "runtime.runtime.Runtime._finish:0",
            "step.updates.optimizer_updates.OptimizerUpdates._after_step:7",
            "step.updates.update_gate.UpdateGate.pass_protected:5",
            "step.updates.update_gate.UpdateGate._wait:5",
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
