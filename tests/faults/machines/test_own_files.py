"""Two machines on which a file that the script imports differs on purpose: a rank never goes on with the other one's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cli_harness import Cli
from support.machines import Fleet
from support.training import SCRIPTS, differences

SCRIPT = "averaged_by_hand.py"
NAMES = ("zero", "one")
TELLS = """
with open(f"{sys.argv[1]}/name-{rank}", "w") as file:
    file.write(config.NAME)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="a machine has a file of its own by a mount, which takes root")
def test_a_lost_rank_goes_on_with_its_own_machine_s_file_though_a_spare_is_on_the_other_one(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    reference, source, fault = undisturbed(SCRIPT, ranks=2), tmp_path / "source", "kill:rank=1,step=20,phase=backward"
    source.mkdir()
    (source / "train.py").write_text(f"import config\n{(SCRIPTS / SCRIPT).read_text()}{TELLS}")
    (source / "config.py").write_text(f"NAME = {NAMES[0]!r}\n")
    (tmp_path / "of-one.py").write_text(f"NAME = {NAMES[1]!r}\n")
    with Cli(tmp_path) as cli:
        own = {1: (tmp_path / "of-one.py", source / "config.py")}
        script = str(source / "train.py")
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
