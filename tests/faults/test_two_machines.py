"""Two machines, one command on each: a rank that is lost on one is taken over by a spare on the other."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from faults.conftest import Undisturbed
from integration.cli_harness import TIMEOUT_S, Cli
from support.training import SCRIPTS, differences

SCRIPT, RANKS = "ddp.py", 2
FAULT = "kill:rank=1,step=30,phase=optimizer"


def test_a_rank_moves_to_the_other_machine_bitwise(undisturbed: Undisturbed, tmp_path: Path) -> None:
    reference, out, events = undisturbed(SCRIPT, ranks=RANKS), tmp_path / "out", tmp_path / "events"
    out.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        controller, master = one.getsockname()[1], two.getsockname()[1]
    common = ["run", "--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={master}", f"--inject={FAULT}"]
    script = [str(SCRIPTS / SCRIPT), str(out)]
    shared = {"TORCHRELAY_SECRET": "a secret of at least 16 characters", "OMP_NUM_THREADS": "1"}
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
