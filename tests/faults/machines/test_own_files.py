"""Two machines on which a file that the script imports differs on purpose: a rank never goes on with the other one's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import only_in_long
from support.cli_harness import Cli, eventually
from support.machines import Fleet, lose
from support.training import SCRIPTS, differences

SCRIPT = "averaged_by_hand.py"
NAMES = ("zero", "one")
TELLS = """
with open(f"{sys.argv[1]}/name-{rank}", "w") as file:
    file.write(config.NAME)
"""


needs_mount = pytest.mark.skipif(
    os.geteuid() != 0, reason="a machine has a file of its own by a mount, which takes root"
)


def with_config(folder: Path) -> str:
    """The script, which imports a file that the second machine has of its own: that is to be mounted over it."""
    source = folder / "source"
    source.mkdir()
    (source / "train.py").write_text(f"import config\n{(SCRIPTS / SCRIPT).read_text()}{TELLS}")
    (source / "config.py").write_text(f"NAME = {NAMES[0]!r}\n")
    (folder / "of-one.py").write_text(f"NAME = {NAMES[1]!r}\n")
    return str(source / "train.py")


@pytest.mark.slow
@needs_mount
def test_a_lost_rank_goes_on_with_its_own_machine_s_file_though_a_spare_is_on_the_other_one(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    reference, fault = undisturbed(SCRIPT, ranks=2), "kill:rank=1,step=20,phase=backward"
    script = with_config(tmp_path)
    with Cli(tmp_path) as cli:
        own = {1: (tmp_path / "of-one.py", tmp_path / "source" / "config.py")}
        fleet = Fleet(cli, f"--inject={fault}", spares=(1, 0), script=script, own_files=own, PYTHONPATH=str(SCRIPTS))
        said = fleet.end(*fleet.commands)
    assert [command.returncode for command in fleet.commands] == [0, 0], said
    (differ,) = fleet.events(0, "files_differ")
    assert differ["reason"].startswith(
        "of what the script imports from its folder config.py is not the same on n0 and n1"
    )
    assert [e["fault"] for e in fleet.events(0, "fault_injected")] == [fault], said
    assert fleet.moved(0) == [1], said
    assert [(e["rank"], e["node"]) for e in fleet.events(0, "process_respawned")] == [(1, "n1")], said
    assert [(fleet.out / f"name-{rank}").read_text() for rank in (0, 1)] == list(NAMES), said
    assert differences(reference, fleet.out, 2) == [], said


@only_in_long
@needs_mount
def test_a_rank_that_is_lost_with_the_controller_goes_on_where_the_files_are_its_machine_s(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """The next controller never hears of the first machine's files. Spares of both others stand ready."""
    reference, holds = undisturbed(SCRIPT, ranks=3), tmp_path / "holds"
    holds.mkdir()
    script = with_config(tmp_path)
    environment = {"HOLD_STEPS": "20", "HOLD_FOLDER": str(holds), "PYTHONPATH": str(SCRIPTS)}
    with Cli(tmp_path) as cli:
        own = {1: (tmp_path / "of-one.py", tmp_path / "source" / "config.py")}
        fleet = Fleet(cli, spares=(0, 1, 1), script=script, own_files=own, **environment)
        eventually("step 20", lambda: fleet.boundary(1) == 19)
        lose(fleet.commands[0])
        (holds / "20").touch()
        said = fleet.end(*fleet.commands[1:])
    assert [command.returncode for command in fleet.commands[1:]] == [0, 0], said
    assert fleet.moved(2) == [0], said
    assert [e["spares"] for e in fleet.events(2, "migration_finished")] == [["n2.s0"]], said
    assert [(fleet.out / f"name-{rank}").read_text() for rank in range(3)] == [NAMES[0], NAMES[1], NAMES[0]], said
    assert differences(reference, fleet.out, 3) == [], said
