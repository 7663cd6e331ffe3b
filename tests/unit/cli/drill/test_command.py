"""What a drill leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchrelay.cli.drill.command import keep_other_run
from torchrelay.cli.drill.records import RunComparison
from torchrelay.cli.drill.runs import DrillRun, Reference
from torchrelay.cli.drill.undisturbed import Undisturbed


@pytest.mark.parametrize("differences", [(), ("exit code 1, where torchrun's is 0",)])
def test_what_a_run_without_a_fault_has_said_is_kept_where_it_was_another_one(
    differences: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "relay"
    folder.mkdir()
    (folder / "stderr").write_text("Traceback")
    plain, relay = DrillRun(0, (), 1.0, tmp_path), DrillRun(1, (), 1.0, folder)
    agreement = RunComparison((), {})
    keep_other_run(Undisturbed(agreement, Reference((), ()), plain, relay, differences), tmp_path / "kept")
    kept = tmp_path / "kept" / "no-fault" / "stderr"
    assert kept.exists() == bool(differences)
