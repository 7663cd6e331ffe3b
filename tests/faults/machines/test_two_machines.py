"""Two machines, one command on each: a rank that is lost on one is taken over by a spare on the other."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from faults.conftest import Undisturbed
from support.cli_harness import SECRET, TIMEOUT_S, Cli
from support.ports import free_port
from support.relay_run import planned_and_ready, read_events
from support.training import SCRIPTS, differences

SCRIPT, RANKS = "ddp.py", 2
FAULT = "kill:rank=1,step=30,phase=optimizer"


@pytest.mark.core
def test_a_rank_moves_to_the_other_machine_bitwise(undisturbed: Undisturbed, tmp_path: Path) -> None:
    reference, out, events = undisturbed(SCRIPT, ranks=RANKS), tmp_path / "out", tmp_path / "events"
    out.mkdir()
    controller, master = free_port(), free_port()
    common = ["run", "--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={master}", f"--inject={FAULT}"]
    script = [str(SCRIPTS / SCRIPT), str(out)]
    shared = {"TORCHRELAY_SECRET": SECRET, "OMP_NUM_THREADS": "1"}
    with Cli(tmp_path) as cli:
        options = [f"--controller-port={controller}", "--spares=1", f"--events={events}"]
        first = cli.start(*common, *options, *script, **shared)
        joined = ["--node-rank=1", f"--controller=127.0.0.1:{controller}"]
        second = cli.start(*common, *joined, *script, **shared)
        said = [process.communicate(timeout=TIMEOUT_S)[1] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), said
    told = [json.loads(line) for line in events.read_text().splitlines()]
    assert [e["fault"] for e in told if e["name"] == "fault_injected"] == [FAULT]
    (migration,) = [e for e in told if e["name"] == "migration_finished"]
    assert migration["outcome"] == "committed"
    assert migration["spare"] == "n0.s0"
    assert next(e["worker"] for e in told if e["name"] == "worker_exited") == "n1.w0"
    assert differences(reference, out, RANKS) == [], said


HELD_STEP = 20


def test_a_machine_that_is_announced_to_go_hands_its_rank_over_without_losing_a_step(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    reference, out, events = undisturbed(SCRIPT, ranks=RANKS), tmp_path / "out", tmp_path / "events"
    holds, notice = tmp_path / "holds", tmp_path / "notice"
    out.mkdir()
    holds.mkdir()
    controller, master = free_port(), free_port()
    common = ["run", "--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={master}"]
    script = [str(SCRIPTS / SCRIPT), str(out)]
    shared = {"TORCHRELAY_SECRET": SECRET, "OMP_NUM_THREADS": "1"}
    shared |= {"HOLD_FOLDER": str(holds), "HOLD_STEPS": str(HELD_STEP + 1)}
    with Cli(tmp_path) as cli:
        options = [f"--controller-port={controller}", "--spares=1", f"--events={events}"]
        first = cli.start(*common, *options, *script, **shared)
        joined = ["--node-rank=1", f"--controller=127.0.0.1:{controller}", f"--node-notice={notice}"]
        second = cli.start(*common, *joined, *script, **shared)
        told = until_held(events, first)
        notice.write_text("the rack gets a new switch\n")
        while not planned_and_ready(told) and first.poll() is None:
            time.sleep(0.05)
            told = read_events(events)
        (holds / str(HELD_STEP + 1)).touch()
        said = [process.communicate(timeout=TIMEOUT_S)[1] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), said
    told = read_events(events)
    (verdict,) = [e for e in told if e["name"] == "health_verdict" and e["action"] == "migrate"]
    assert (verdict["rule"], verdict["node"], verdict["ranks"]) == ("node-termination", "n1", [1])
    assert "the rack gets a new switch" in verdict["reason"]
    (migration,) = [e for e in told if e["name"] == "migration_finished"]
    assert (migration["outcome"], migration["kind"], migration["steps_redone"]) == ("committed", "planned", 0)
    assert migration["spare"] == "n0.s0"
    assert differences(reference, out, RANKS) == [], said


def until_held(events: Path, process: Any) -> list[dict[str, Any]]:
    """Until training stands at the held step, or the job has ended."""
    while process.poll() is None:
        told = read_events(events)
        if any(e["name"] == "progress" and e["steps"] >= HELD_STEP for e in told):
            return told
        time.sleep(0.05)
    return read_events(events)
