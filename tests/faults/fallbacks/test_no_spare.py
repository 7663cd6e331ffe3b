"""Nobody is left to take over: what survivors hold is saved, and a later run goes on from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import relay
from support.training import differences

SCRIPT, RANKS = "ddp.py", 3


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    few(
        1,
        [
            pytest.param("kill:rank=2,step=31,phase=after-step", id="after the gate"),
            pytest.param("kill:rank=0,step=30,phase=backward", id="before the gate"),
        ],
    ),
)
def test_a_checkpoint_is_made_in_time_and_resumed_bitwise(fault: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    lost = relay(first, SCRIPT, ranks=RANKS, spares=0, inject=[fault])
    assert lost.status == 75, lost.told()
    assert lost.faults() == [fault]
    (saved,) = lost.named("checkpoint_saved")
    told = re.search(r"hint: .*run --resume (\S+)", lost.stderr)
    assert told is not None, lost.told()
    assert told[1] == saved["directory"]
    assert not list(lost.out.iterdir())
    folder = Path(saved["directory"])
    assert [p.name for p in (folder, *folder.iterdir()) if p.stat().st_mode & 0o077] == []
    resumed = relay(second, SCRIPT, ranks=RANKS, spares=0, options=["--resume", saved["directory"]], out=lost.out)
    assert resumed.status == 0, resumed.told()
    assert [m["kind"] for m in resumed.committed()] == ["resume"]
    assert differences(undisturbed(SCRIPT, ranks=RANKS), resumed.out, RANKS) == [], resumed.told()
