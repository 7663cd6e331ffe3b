"""A rank hangs and nobody can take it over: the job ends as under torchrun, and says who hung and where."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import assert_unharmed, relay

RANKS = 2
HANG_TIMEOUT_S, GROUP_TIMEOUT_S = 9, 8
FAILED = 1
"""What torchrun exits with where a rank has failed."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "where"),
    few(
        1,
        [
            ("spin:rank=1,step=13,phase=forward", "runs in circles"),
            ("stop:rank=1,step=13,phase=forward", "stopped (state T)"),
            ("deadlock:rank=1,step=13,phase=data", "only it could bring about"),
        ],
    ),
)
def test_a_job_that_cannot_replace_it_ends_after_the_hang_timeout(fault: str, where: str, tmp_path: Path) -> None:
    """What its data set draws cannot be carried, so nobody takes over."""
    options = [f"--hang-timeout={HANG_TIMEOUT_S}s"]
    run = relay(tmp_path, "changing_data.py", "records", ranks=RANKS, inject=[fault], options=options)
    assert run.status == FAILED, run.told()
    assert run.faults() == [fault]
    assert run.named("migration_started") == []
    (fell,) = run.named("job_fell")
    assert fell["rank"] == 1
    for text in (
        where,
        f"longer than {HANG_TIMEOUT_S} s (--hang-timeout)",
        "rank 1 cannot be replaced: ",
        "changing_data.py:",
    ):
        assert text in run.stderr, f"{text}\n{run.told()}"


@only_in_long
def test_a_job_that_nobody_watches_ends_after_its_group_s_own_timeout_as_under_torchrun(tmp_path: Path) -> None:
    """Something of ours fails in rank 1, so the job trains as it is; then it is stopped."""
    broken = ("torchrelay.shim.journal.writer.Writer", "boundary", "3")
    module, _, cls = broken[0].rpartition(".")
    environment = {"GROUP_TIMEOUT_S": str(GROUP_TIMEOUT_S), "STAND_STILL": "1:9"}
    run = relay(tmp_path, "sabotaged.py", module, cls, *broken[1:], ranks=RANKS, spares=0, environment=environment)
    assert "broken on purpose" in run.stderr, run.told()
    assert run.named("suspected") == [], run.told()
    assert run.status == FAILED, run.told()
    assert "the step failed" in run.stderr, run.told()


def test_a_rank_that_waits_alone_behind_its_update_makes_way_once_nothing_is_under_way(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """The others wait in another line there, as they might for a slow transfer."""
    fault = "lonely:rank=1,step=15,phase=after-step"
    run = relay(tmp_path, "ddp.py", ranks=3, inject=[fault])
    assert_unharmed(run, undisturbed("ddp.py", ranks=3), 3, [fault], 1)
    (suspected,) = run.named("suspected")
    assert suspected["rank"] == 1
    assert "nothing was sent between any of them" in suspected["reason"]
    assert "rank 1 waits at another line than ranks 0, 2" in suspected["reason"]
