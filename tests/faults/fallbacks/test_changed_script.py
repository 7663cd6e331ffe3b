"""The script's file is changed while it trains: nobody goes on in the midst of it with other code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import only_in_long
from support.cli_harness import Cli, eventually
from support.relay_run import read_events, relay
from support.training import SCRIPTS, differences

SCRIPT = "averaged_by_hand.py"
EDITED_AT, LOST_AT = 20, 24
EDITS = f"""
    if step == {EDITED_AT} and rank == 0:
        with open(__file__, "a") as file:
            file.write("# edited")
"""


@pytest.mark.core
@pytest.mark.slow
def test_a_process_that_finds_another_text_does_not_take_over_and_all_begin_again_with_it_at_the_same_step(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    reference, script, fault = undisturbed(SCRIPT, ranks=2), tmp_path / "train.py", f"kill:rank=1,step={LOST_AT}"
    text, loop = (SCRIPTS / SCRIPT).read_text(), "    pace.work()\n"
    script.write_text(text.replace(loop, f"{loop}{EDITS}"))
    run = relay(
        *(tmp_path, str(script)),
        ranks=2,
        spares=0,
        inject=[f"{fault},phase=backward"],
        options=["--respawn-limit=1", "--max-restarts=1"],
        environment={"PYTHONPATH": str(SCRIPTS)},
    )
    assert run.status == 0, run.told()
    assert script.read_text().endswith("# edited")
    (lost,) = [m for m in run.named("migration_finished") if m["kind"] == "unplanned"]
    assert f"{script}: changed since the rank was started that runs it" in lost["reason"], run.told()
    assert [e["rung"] for e in run.named("job_restarted")] == ["jit-checkpoint"], run.told()
    assert differences(reference, run.out, 2) == [], run.told()


TRAINS = """
    import os, time, torch, torch.distributed as dist
    from beside import make
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(make())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1_000_000):
        time.sleep(0.05)
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
"""
BESIDE = "import torch\n\n\ndef make():\n    return torch.nn.Linear(4, 4)\n"


@only_in_long
def test_an_edit_lowers_the_level_before_any_loss_and_the_level_rises_once_it_is_taken_back(tmp_path: Path) -> None:
    module, events = tmp_path / "beside.py", tmp_path / "events"
    module.write_text(BESIDE)
    with Cli(tmp_path) as cli:
        cli.start("run", "--nproc-per-node=2", "--spares=1", f"--events={events}", "SCRIPT", script=TRAINS)

        def levels() -> list[tuple[str, str]]:
            return [(e["level"], e["reason"]) for e in read_events(events) if e["name"] == "protection"]

        def is_now(level: str, count: int) -> bool:
            return len(levels()) > count and levels()[-1][0] == level

        eventually("it is protected", lambda: is_now("protected", 0))
        module.write_text(BESIDE.replace("4, 4", "4, 4, bias=False"))
        before = len(levels())
        eventually("the level is lower", lambda: is_now("unprotected", before))
        assert f"no rank could be replaced: {module}: changed since this rank loaded it" in levels()[-1][1]
        module.write_text(BESIDE)
        before = len(levels())
        eventually("it is protected again", lambda: is_now("protected", before))


MAKES = """
    import os, pathlib, sys, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    name = f"made_{rank}"
    own = pathlib.Path(__file__).with_name(f"{name}.py")
    own.write_text(f"MAKER = {os.getpid()}\\n")
    maker = __import__(name).MAKER
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(30):
        optimizer.zero_grad()
        model(torch.full((2, 4), float(maker))).sum().backward()
        optimizer.step()
    print(f"rank {rank} ends with what {maker} made", flush=True)
"""


@pytest.mark.slow
def test_a_module_that_set_up_writes_is_the_lost_rank_s_in_the_process_that_takes_over(tmp_path: Path) -> None:
    with Cli(tmp_path) as cli:
        done = cli.run(
            *("run", "--nproc-per-node=2", "--spares=1", f"--events={tmp_path / 'events'}"),
            *("--inject=kill:rank=1,step=9,phase=backward", "SCRIPT"),
            script=MAKES,
        )
    assert done.returncode == 0, done.stderr
    (moved,) = [e for e in read_events(tmp_path / "events") if e["name"] == "migration_finished"]
    assert (moved["outcome"], moved["ranks"]) == ("committed", [1]), moved
    (maker,) = re.findall(r"MAKER = (\d+)", (tmp_path / "made_1.py").read_text())
    assert f"rank 1 ends with what {maker} made" in done.stdout, done.stdout
