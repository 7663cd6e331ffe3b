"""Faults of devices, given to fake drivers, a fake sysfs and a fake kernel log: all that reads and decides is the real thing."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.relay_run import Finished, assert_unharmed, relay

SCRIPT, RANKS = "ddp.py", 3
EPOCHS_OF_A_STRAGGLER = "30"
ONLY_STRAGGLERS = """
rules:
  slow: {signal: straggler, at_least: 1.5, clear: 1.2, for_s: 2, verdict: migrate, why: too slow, source: this test}
"""


def verdicts(run: Finished) -> list[tuple[str, str, list[int]]]:
    quiet = ("watch", "ignore")
    return [(v["action"], v["outcome"], v["ranks"]) for v in run.named("health_verdict") if v["action"] not in quiet]


def moves(run: Finished) -> list[tuple[str, int]]:
    return [(m["kind"], m["rank"]) for m in run.committed()]


def reasons(run: Finished) -> list[str]:
    return [m["reason"] for m in run.named("migration_started")]


@pytest.mark.core
def test_broken_devices_have_their_ranks_replaced_now_and_a_secondary_error_alone_moves_nobody(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    secondary = "xid:rank=1,step=8,phase=forward,code=43"
    broken = {
        "ecc:rank=0,step=16,phase=backward": "XID 48 on GPU-",
        "nvlink:rank=2,step=26,phase=forward": "XID 74 on GPU-",
        "xid:rank=1,step=36,phase=forward,code=79": "XID 79 on GPU-",
        "oom:rank=0,step=46,phase=forward": "ran out of memory",
    }
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=len(broken), inject=[secondary, *broken])
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, [secondary, *broken], len(broken))
    assert moves(run) == [("unplanned", rank) for rank in (0, 2, 1, 0)], run.told()
    for reason, expected in zip(reasons(run), broken.values(), strict=True):
        assert expected in reason, run.told()
    assert [v[0] for v in verdicts(run)[:3]] == ["replace"] * 3, run.told()
    (alone,) = [v for v in run.named("health_verdict") if v["rule"] == "xid-43"]
    assert (alone["action"], alone["ranks"]) == ("ignore", [1])
    assert alone["time_s"] < run.named("migration_started")[0]["time_s"]


def test_devices_that_are_about_to_fail_have_their_ranks_moved_without_losing_a_step(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    failing = {
        "ib-flap:rank=0,step=20,phase=forward": "link-flap on mlx5_0/1, 2 times",
        "xid:rank=2,step=38,phase=forward,code=63": "XID 63 on GPU-",
        "thermal:rank=1,step=56,phase=forward": "gpu-temperature-margin on GPU-",
    }
    # A move stops the job some steps ahead, and is over with the first step behind that: all before the next fault's step.
    environment = {"STEP_S": "0.05"}
    run = relay(
        tmp_path,
        SCRIPT,
        ranks=RANKS,
        spares=3,
        inject=list(failing),
        planned_at=[20, 38, 56],
        environment=environment,
    )
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, list(failing), len(failing))
    assert moves(run) == [("planned", rank) for rank in (0, 2, 1)], run.told()
    assert [m["steps_redone"] for m in run.committed()] == [0, 0, 0]
    for reason, expected in zip(reasons(run), failing.values(), strict=True):
        assert expected in reason, run.told()
    assert {v[0] for v in verdicts(run)} == {"migrate"}, run.told()


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
