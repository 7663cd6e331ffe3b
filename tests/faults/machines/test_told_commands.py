"""Several machines, and nothing is tried any more: the commands that the message tells go on at the same step."""

from __future__ import annotations

import re
from pathlib import Path

from faults.conftest import Undisturbed
from support.cli_harness import TIMEOUT_S, Cli
from support.machines import SHARED, Fleet
from support.training import differences

SCRIPT = "ddp.py"
FAULT = "kill:rank=1,step=20,phase=backward"


def test_the_told_command_of_each_machine_goes_on_where_the_job_ended(undisturbed: Undisturbed, tmp_path: Path) -> None:
    reference = undisturbed(SCRIPT, ranks=2)
    with Cli(tmp_path) as cli:
        options = ("--respawn-limit=0", "--max-restarts=0", f"--inject={FAULT}")
        fleet = Fleet(cli, *options, spares=(0, 0), script=SCRIPT)
        said = [command.communicate(timeout=TIMEOUT_S)[1] for command in fleet.commands]
        assert [command.returncode for command in fleet.commands] == [75, 75], said
        assert differences(reference, fleet.out, 2) != [], "the job is not over yet"
        told = [re.findall(r"^torchrelay: hint: (.*)  # on (n\d)$", text, re.M) for text in said]
        assert told[0] == told[1], said
        assert [node for _, node in told[0]] == ["n0", "n1"], said
        pasted = [cli.start_program("bash", "-c", command, **SHARED) for command, _ in told[0]]
        again = [command.communicate(timeout=TIMEOUT_S)[1] for command in pasted]
    assert [command.returncode for command in pasted] == [0, 0], again
    assert all("all ranks have entered" in text for text in again), again
    assert differences(reference, fleet.out, 2) == [], again
