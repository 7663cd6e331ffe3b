"""Faults of devices, given to fake drivers, a fake sysfs and a fake kernel log: all that reads and decides is the real thing."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import Finished, assert_unharmed, relay

SCRIPT, RANKS, STEP = "ddp.py", 3, 20
EPOCHS_OF_A_STRAGGLER = "30"
ONLY_STRAGGLERS = """
rules:
  slow: {signal: straggler, at_least: 1.5, clear: 1.2, for_s: 2, verdict: migrate, why: too slow, source: this test}
"""


def verdicts(run: Finished) -> list[tuple[str, str, list[int]]]:
    quiet = ("watch", "ignore")
    return [(v["action"], v["outcome"], v["ranks"]) for v in run.named("health_verdict") if v["action"] not in quiet]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "reason"),
    few(
        1,
        [
            ("xid:rank=1,step=20,phase=forward,code=79", "XID 79 on GPU-"),
            ("ecc:rank=0,step=20,phase=backward", "XID 48 on GPU-"),
            ("nvlink:rank=2,step=20,phase=forward", "XID 74 on GPU-"),
        ],
    ),
)
def test_a_broken_device_has_its_rank_replaced_now(
    undisturbed: Undisturbed, tmp_path: Path, fault: str, reason: str
) -> None:
    rank = int(fault.partition("rank=")[2][0])
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, [fault], 1)
    assert verdicts(run)[0] == ("replace", "done", [rank]), run.told()
    (migration,) = run.committed()
    assert (migration["kind"], migration["rank"]) == ("unplanned", rank)
    assert reason in run.named("migration_started")[0]["reason"]


def test_a_process_that_the_machine_had_no_memory_for_is_replaced(undisturbed: Undisturbed, tmp_path: Path) -> None:
    fault = "oom:rank=1,step=20,phase=forward"
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, [fault], 1)
    assert "ran out of memory" in run.named("migration_started")[0]["reason"], run.told()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "reason"),
    few(
        1,
        [
            ("ib-flap:rank=0,step=20,phase=forward", "link-flap on mlx5_0/1, 2 times"),
            ("xid:rank=2,step=20,phase=forward,code=63", "XID 63 on GPU-"),
            ("thermal:rank=1,step=20,phase=forward", "gpu-temperature-margin on GPU-"),
        ],
    ),
)
def test_a_device_that_is_about_to_fail_has_its_rank_moved_without_losing_a_step(
    undisturbed: Undisturbed, tmp_path: Path, fault: str, reason: str
) -> None:
    rank = int(fault.partition("rank=")[2][0])
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=[fault], planned_at=[STEP])
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, [fault], 1)
    assert verdicts(run)[0] == ("migrate", "done", [rank]), run.told()
    (migration,) = run.committed()
    assert (migration["kind"], migration["rank"], migration["steps_redone"]) == ("planned", rank, 0)
    assert reason in run.named("migration_started")[0]["reason"]


def test_a_secondary_error_alone_moves_nobody(undisturbed: Undisturbed, tmp_path: Path) -> None:
    fault = "xid:rank=1,step=20,phase=forward,code=43"
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, [fault], 0)
    told = [(v["action"], v["rule"]) for v in run.named("health_verdict")]
    assert ("ignore", "xid-43") in told, run.told()
    assert verdicts(run) == []


def test_with_observe_a_broken_device_is_only_told(undisturbed: Undisturbed, tmp_path: Path) -> None:
    fault = "xid:rank=1,step=20,phase=forward,code=79"
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=[fault], options=["--observe"])
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, [fault], 0)
    assert verdicts(run)[0] == ("replace", "observed", [1]), run.told()


def test_a_straggler_is_moved_and_its_successor_keeps_up(undisturbed: Undisturbed, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(ONLY_STRAGGLERS)
    fault = "straggler:rank=2,step=20,phase=forward,slow=3x"
    options = ["--health-policy", str(policy)]
    run = relay(tmp_path, SCRIPT, EPOCHS_OF_A_STRAGGLER, ranks=RANKS, inject=[fault], options=options)
    assert_unharmed(run, undisturbed(SCRIPT, EPOCHS_OF_A_STRAGGLER, ranks=RANKS), RANKS, [fault], 1)
    (migration,) = run.committed()
    assert (migration["kind"], migration["rank"]) == ("planned", 2), run.told()
