"""Several machines, and one of them is gone, agent and all: its ranks live on where copies of their journals were."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.cli_harness import SECRET, TIMEOUT_S, Cli, eventually
from support.machines import descendants
from support.ports import free_port
from support.relay_run import read_events
from support.training import SCRIPTS, differences

SCRIPT, RANKS = "ddp.py", 4
SHARED = {"TORCHRELAY_SECRET": SECRET, "OMP_NUM_THREADS": "1"}
SILENT_S = 7.0
"""As in the controller's policy."""


class Machines:
    """`count` commands on loopback, `local_ranks` each; the first one has the controller and all spares."""

    def __init__(
        self,
        cli: Cli,
        *options: str,
        spares: int,
        script: str = SCRIPT,
        local_ranks: int = 2,
        count: int = 2,
        **environment: str,
    ) -> None:
        self.out, self._events = cli.folder / "out", cli.folder / "events"
        self.out.mkdir()
        controller, master = free_port(), free_port()
        common = ["run", f"--nnodes={count}", f"--nproc-per-node={local_ranks}", "--master-addr=127.0.0.1"]
        common.append(f"--master-port={master}")
        command, environment = [str(SCRIPTS / script), str(self.out)], SHARED | environment
        alone = [f"--controller-port={controller}", f"--spares={spares}", f"--events={self._events}"]
        self.first = cli.start(*common, *options, *alone, *command, **environment)
        joined = [[f"--node-rank={n}", f"--controller=127.0.0.1:{controller}"] for n in range(1, count)]
        self.others = [cli.start(*common, *options, *more, *command, **environment) for more in joined]
        self.second = self.others[0]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self._events) if event["name"] == name]

    def end(self) -> str:
        """Waits for all commands; what was said, for the message of a failed assertion."""
        said = "".join("".join(p.communicate(timeout=TIMEOUT_S)) for p in (self.first, *self.others))
        quiet = ("progress", "rank_report", "phase")
        lines = [str(event)[:300] for event in read_events(self._events) if event["name"] not in quiet]
        return "\n".join([*lines, said])

    def moved(self) -> list[int]:
        done = [e for e in self.events("migration_finished") if e["outcome"] == "committed"]
        return sorted(rank for e in done for rank in e["ranks"])


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize("phase", few(1, ["optimizer", "backward"]))
def test_both_ranks_of_a_machine_that_is_gone_go_on_bitwise(
    phase: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    reference, fault = undisturbed(SCRIPT, ranks=RANKS), f"node:rank=3,step=30,phase={phase}"
    with Cli(tmp_path) as cli:
        job = Machines(cli, f"--inject={fault}", spares=2)
        said = job.end()
    assert [e["fault"] for e in job.events("fault_injected")] == [fault], said
    assert {(e["rank"], e["node"]) for e in job.events("journals_kept")} >= {(2, "n0"), (3, "n0")}, said
    assert [(e["node"], e["ranks"]) for e in job.events("node_lost")] == [("n1", [2, 3])], said
    assert (job.first.returncode, job.second.returncode) == (0, 1), said
    assert job.moved() == [2, 3], said
    assert differences(reference, job.out, RANKS) == [], said


def test_a_machine_that_is_cut_off_is_replaced_and_may_not_come_back(undisturbed: Undisturbed, tmp_path: Path) -> None:
    reference, holds = undisturbed(SCRIPT, ranks=RANKS), tmp_path / "holds"
    holds.mkdir()
    with Cli(tmp_path) as cli:
        job = Machines(cli, spares=2, HOLD_STEPS="20,45", HOLD_FOLDER=str(holds))
        eventually("step 20", lambda: any(e["steps"] == 19 for e in job.events("progress")))
        cut_off = descendants(job.second.pid)
        assert len(cut_off) == 3, "the agent and its two workers"
        for pid in cut_off:
            os.kill(pid, signal.SIGSTOP)
        (holds / "20").touch()
        eventually("a migration", lambda: job.moved() == [2, 3])
        for pid in cut_off:
            os.kill(pid, signal.SIGCONT)
        job.second.wait(TIMEOUT_S)
        assert all(not Path(f"/proc/{pid}").exists() for pid in cut_off), "they are ended before the job goes on"
        (holds / "45").touch()
        said = job.end()
    (lost,) = job.events("node_lost")
    assert (lost["node"], lost["ranks"]) == ("n1", [2, 3]), said
    (finished,) = job.events("migration_finished")
    assert finished["downtime_s"]["detect"] >= SILENT_S, said
    assert any("n1 is back" in e["text"] for e in job.events("log")), said
    assert (job.first.returncode, job.second.returncode) == (0, 1), said
    assert differences(reference, job.out, RANKS) == [], said


@only_in_long
def test_a_second_machine_that_is_gone_while_ranks_stand_still_goes_on_from_copies_on_its_new_keeper(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    reference, holds = undisturbed(SCRIPT, ranks=3), tmp_path / "holds"
    holds.mkdir()
    with Cli(tmp_path) as cli:
        job = Machines(cli, spares=3, local_ranks=1, count=3, HOLD_STEPS="20", HOLD_FOLDER=str(holds))
        eventually("step 20", lambda: any(e["steps"] == 19 for e in job.events("progress")))
        eventually("copies of rank 1 on n2", lambda: (1, "n2") in kept(job))
        end(job.others[1])
        (holds / "20").touch()
        eventually("copies of rank 1 on n0", lambda: (1, "n0") in kept(job))
        end(job.others[0])
        said = job.end()
    assert [(e["node"], e["ranks"]) for e in job.events("node_lost")] == [("n2", [2]), ("n1", [1])], said
    (whole,) = (e["time_s"] for e in job.events("journals_kept") if (e["rank"], e["node"]) == (1, "n0"))
    assert whole <= job.events("migration_finished")[0]["time_s"], f"not while rank 1 stood still: {said}"
    assert job.moved() == [1, 2], said
    assert job.first.returncode == 0, said
    assert differences(reference, job.out, 3) == [], said


def kept(job: Machines) -> set[tuple[int, str]]:
    return {(e["rank"], e["node"]) for e in job.events("journals_kept")}


def end(command: subprocess.Popen[str]) -> None:
    """As with a machine: nothing of it says a last word."""
    for pid in (command.pid, *descendants(command.pid)):
        os.kill(pid, signal.SIGSTOP)
    for pid in (*descendants(command.pid), command.pid):
        os.kill(pid, signal.SIGKILL)
