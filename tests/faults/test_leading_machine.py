"""Several machines, and the one with the controller is gone: another one leads, and the ranks live on there."""

from __future__ import annotations

from pathlib import Path

from faults.conftest import Undisturbed
from integration.cli_harness import Cli, eventually
from support.machines import Fleet, lose
from support.training import differences

SCRIPT = "ddp.py"


def test_the_machine_with_the_controller_is_gone_and_its_rank_goes_on_elsewhere_bitwise(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    reference, holds = undisturbed(SCRIPT, ranks=2), tmp_path / "holds"
    holds.mkdir()
    with Cli(tmp_path) as cli:
        fleet = Fleet(cli, spares=(0, 1), script=SCRIPT, HOLD_STEPS="20", HOLD_FOLDER=str(holds))
        eventually("step 20", lambda: fleet.boundary(1) == 19)
        lose(fleet.commands[0])
        (holds / "20").touch()
        said = fleet.end(fleet.commands[1])
    assert fleet.commands[1].returncode == 0, said
    assert fleet.moved(1) == [0], said
    assert fleet.events(1, "job_finished")[0]["exit_code"] == 0, said
    assert differences(reference, fleet.out, 2) == [], said
