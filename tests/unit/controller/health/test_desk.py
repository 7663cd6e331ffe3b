"""From evidence to what is done, with the real core: agents and shims answer as real ones do."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path

import pytest
from support.fake_job import FakeJob

from torchrelay.controller.core import CALM_TICK_S
from torchrelay.protocol import messages as msg
from torchrelay.protocol.events import (
    HealthVerdict,
    MigrationFinished,
    MigrationStarted,
    MoveNotMade,
    QuarantineCleared,
)
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.health.policy import HealthPolicy, Limits
from torchrelay.protocol.health.policy_file import default_policy
from torchrelay.protocol.messages import HealthSignal, HealthSignals, HealthSources

POLICY = default_policy()


def job_with(
    folder: Path, spares: int = 1, policy: HealthPolicy = POLICY, world_size: int = 3, **config: object
) -> FakeJob:
    """GPU-0 and port-0 belong to n0.w0 and so on; spares have those behind."""
    job = FakeJob(folder, world_size, spares, health=policy, config=config)
    job.train()
    workers = [*job.ranks, *job.spares]
    job.give(HealthSources({"nvidia": "ok"}, {w: f"nvidia-driver GPU-{i} port-{i}" for i, w in enumerate(workers)}))
    return job


def see(job: FakeJob, kind: str, device: str = "", **more: object) -> None:
    job.give(HealthSignals((HealthSignal(kind, device, **more),)))  # type: ignore[arg-type]


def moved(job: FakeJob) -> list[tuple[str, int]]:
    job.settle()
    job.tick(1.0)
    job.settle()
    return [(e.kind, e.rank) for e in job.told(MigrationFinished) if e.outcome == "committed"]


def outcomes(job: FakeJob) -> list[tuple[str, str]]:
    return [(v.action, v.outcome) for v in job.told(HealthVerdict)]


def test_a_lost_gpu_replaces_its_rank_and_is_quarantined(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    see(job, k.XID, "GPU-1", code=79)
    assert moved(job) == [("unplanned", 1)]
    (verdict,) = job.told(HealthVerdict)
    assert (verdict.action, verdict.ranks, verdict.outcome, verdict.subject) == (k.REPLACE, (1,), "done", "GPU-1")
    assert "XID 79 on GPU-1" in job.told(MigrationStarted)[0].reason
    assert job.core.status(job.now_s).quarantine[0].startswith("GPU-1: XID 79")


def test_a_pending_remap_moves_without_losing_a_step(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    see(job, k.REMAP_PENDING, "GPU-2")
    assert moved(job) == [("planned", 2)]


@pytest.mark.parametrize("code", [43, 45, 106])
def test_a_harmless_xid_moves_nobody(tmp_path: Path, code: int) -> None:
    job = job_with(tmp_path)
    see(job, k.XID, "GPU-1", code=code)
    assert moved(job) == []
    assert outcomes(job) == [(k.IGNORE, "told")]
    assert job.core.status(job.now_s).quarantine == ()


def test_a_spare_on_a_device_in_quarantine_takes_over_nothing(tmp_path: Path) -> None:
    job = job_with(tmp_path, spares=2)
    see(job, k.XID, "GPU-3", code=79)
    assert outcomes(job) == [(k.REPLACE, "refused")]
    see(job, k.XID, "GPU-0", code=79)
    assert moved(job) == [("unplanned", 0)]
    assert job.told(MigrationFinished)[0].spare == "n0.s1"


def test_without_a_healthy_spare_a_planned_move_waits_for_one_and_says_so_once(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    see(job, k.REMAP_PENDING, "GPU-3")
    see(job, k.REMAP_PENDING, "GPU-1")
    assert moved(job) == []
    (refused,) = job.told(MoveNotMade)
    assert refused.reason == "every spare is on a device or node in quarantine; it moves as soon as there is one"
    assert job.core.tick_every_s(job.now_s) == CALM_TICK_S, "it waits for what is told, not for the clock"
    assert job.core.clear(msg.ClearRequest("GPU-3", "was reset")).cleared
    assert moved(job) == [("planned", 1)]


def test_evidence_that_asks_for_a_planned_move_before_training_has_begun_is_not_forgotten(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, health=POLICY)
    job.warm()
    job.give(msg.HealthSources({}, {f"n0.w{r}": f"GPU-{r}" for r in range(3)}), "n0")
    see(job, k.REMAP_PENDING, "GPU-2")
    assert job.told(MigrationStarted) == []
    job.train()
    assert moved(job) == [("planned", 2)]


def test_under_a_policy_of_planned_moves_alone_evidence_moves_and_does_not_replace(tmp_path: Path) -> None:
    job = job_with(tmp_path, spares=2, planned_only=True)
    see(job, k.REMAP_PENDING, "GPU-2")
    assert moved(job) == [("planned", 2)]
    see(job, k.XID, "GPU-1", code=79)
    assert outcomes(job)[-1] == (k.REPLACE, "refused")
    assert "planned-only" in job.told(HealthVerdict)[-1].reason


def test_a_cleared_device_may_be_used_again(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    see(job, k.REMAP_PENDING, "GPU-3")
    assert not job.core.clear(msg.ClearRequest("GPU-9", "x")).cleared
    assert job.core.clear(msg.ClearRequest("GPU-3", "was reset")).cleared
    job.tick()
    assert [c.reason for c in job.told(QuarantineCleared)] == ["was reset"]
    see(job, k.XID, "GPU-1", code=79)
    assert moved(job) == [("unplanned", 1)]


def test_a_port_that_is_down_replaces_the_rank_beside_it_when_it_does_not_come_back(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    see(job, k.LINK_DOWN, "port-2")
    job.tick(2.9)
    assert job.told(MigrationStarted) == []
    job.tick(0.2)
    assert moved(job) == [("unplanned", 2)]


def test_two_flaps_move_and_one_does_not(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    see(job, k.LINK_FLAP, "port-1")
    assert moved(job) == []
    see(job, k.LINK_FLAP, "port-1")
    assert moved(job) == [("planned", 1)]


def test_a_device_that_nobody_uses_moves_nobody(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    see(job, k.XID, "GPU-unknown", code=79)
    assert moved(job) == []
    assert outcomes(job) == [(k.REPLACE, "refused")]


@pytest.mark.parametrize("row", [False, True])
def test_observe_says_what_it_would_do_and_does_nothing(tmp_path: Path, row: bool) -> None:
    rules = tuple(dataclasses.replace(r, observe=r.name == "xid-79") for r in POLICY.rules)
    policy = HealthPolicy(rules) if row else dataclasses.replace(POLICY, observe=True)
    job = job_with(tmp_path, policy=policy)
    see(job, k.XID, "GPU-1", code=79)
    assert moved(job) == []
    assert outcomes(job) == [(k.REPLACE, "observed")]
    assert job.core.status(job.now_s).quarantine == ()
    see(job, k.XID, "GPU-1", code=48)
    assert bool(moved(job)) == row


def test_too_many_migrations_ask_for_a_person(tmp_path: Path) -> None:
    job = job_with(tmp_path, spares=2, policy=dataclasses.replace(POLICY, limits=Limits(storm_migrations=1)))
    see(job, k.XID, "GPU-0", code=79)
    assert moved(job) == [("unplanned", 0)]
    see(job, k.XID, "GPU-1", code=79)
    assert moved(job) == [("unplanned", 0)]
    assert outcomes(job)[-1] == (k.REPLACE, "refused")
    assert "a person has to look" in job.told(HealthVerdict)[-1].reason


def test_memory_that_the_program_outgrew_ends_the_job_with_the_reason(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    see(job, k.OOM_PROGRAM, worker="n0.w1")
    job.die("n0.w1")
    assert job.stop is not None
    assert "the program's own fault" in job.stop.reason
    assert job.told(MigrationStarted) == []


def test_memory_that_the_machine_ran_out_of_replaces(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    see(job, k.OOM_NODE, worker="n0.w1")
    job.die("n0.w1")
    assert moved(job) == [("unplanned", 1)]


def test_memory_that_ran_out_for_the_same_rank_twice_is_the_programs_own_growth(tmp_path: Path) -> None:
    job = job_with(tmp_path, spares=2)
    for victim in ("n0.w1", "n0.s0"):
        assert job.stop is None
        see(job, k.OOM_NODE, worker=victim)
        job.die(victim)
        moved(job)
    assert job.stop is not None
    assert "twice" in job.stop.reason
    assert len(job.told(MigrationStarted)) == 1


def test_memory_that_ran_out_for_two_ranks_replaces_both(tmp_path: Path) -> None:
    job = job_with(tmp_path, spares=2)
    for victim in ("n0.w1", "n0.w2"):
        see(job, k.OOM_NODE, worker=victim)
        job.die(victim)
        moved(job)
    assert moved(job) == [("unplanned", 1), ("unplanned", 2)]


def hang(job: FakeJob, worker: str) -> None:
    """Its peers wait for it, and it does nothing."""
    others = {w for w in job.ranks if w not in job.dead} - {worker}
    job.waiting, job.still, job.asleep = others, others | {worker}, {worker}
    for _ in range(40):
        job.tick(0.5)
        if job.told(MigrationStarted) or job.stop is not None:
            break
    job.waiting, job.still, job.asleep = set(), set(), set()
    job.settle()


def test_a_hang_at_the_same_step_twice_is_the_programs(tmp_path: Path) -> None:
    job = job_with(tmp_path, spares=2)
    hang(job, "n0.w1")
    assert moved(job) == [("unplanned", 1)]
    job.events.clear()
    hang(job, "n0.s0")
    job.tick(2.0)
    assert job.stop is not None
    assert "hang in step 6" in job.stop.reason


def test_a_hang_at_another_step_is_replaced_again(tmp_path: Path) -> None:
    job = job_with(tmp_path, spares=2)
    hang(job, "n0.w1")
    assert moved(job) == [("unplanned", 1)]
    job.events.clear()
    job.boundary += 3
    job.tick(1.0)
    hang(job, "n0.s0")
    assert moved(job) == [("unplanned", 1)]


def test_the_same_crash_at_the_same_step_twice_ends_the_job(tmp_path: Path) -> None:
    job = job_with(tmp_path, spares=2)
    job.die("n0.w1", signal=signal.SIGSEGV)
    assert moved(job) == [("unplanned", 1)]
    job.die("n0.s0", signal=signal.SIGSEGV)
    assert job.stop is not None
    assert job.stop.exit_code == 128 + signal.SIGSEGV
    assert "SIGSEGV in step 6" in job.stop.reason


def test_the_same_crash_at_another_step_and_kills_from_outside_do_not(tmp_path: Path) -> None:
    job = job_with(tmp_path, spares=2)
    job.die("n0.w1", signal=signal.SIGSEGV)
    assert moved(job) == [("unplanned", 1)]
    job.boundary += 1
    job.progress()
    job.die("n0.s0", signal=signal.SIGSEGV)
    assert moved(job) == [("unplanned", 1), ("unplanned", 1)]
    other = job_with(tmp_path, spares=2)
    for victim in ("n0.w1", "n0.s0"):
        other.die(victim, signal=signal.SIGKILL)
        moved(other)
    assert moved(other) == [("unplanned", 1), ("unplanned", 1)]


def test_a_script_that_fails_on_a_blamed_device_is_not_the_programs_fault(tmp_path: Path) -> None:
    rules = tuple(dataclasses.replace(r, observe=True) for r in POLICY.rules)
    job = job_with(tmp_path, policy=HealthPolicy(rules))
    see(job, k.XID, "GPU-1", code=48)
    job.say("n0.w1", msg.ScriptFailed("RuntimeError", "CUDA error", 1, 5))
    job.die("n0.w1", signal=0, exit_code=1)
    assert moved(job) == [("unplanned", 1)]
    assert "CUDA error" in job.told(MigrationStarted)[0].reason
    assert "XID 48" in job.told(MigrationStarted)[0].reason


def test_a_script_that_fails_without_that_ends_the_job(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    see(job, k.XID, "GPU-0", code=8)
    job.say("n0.w1", msg.ScriptFailed("RuntimeError", "CUDA error", 1, 5))
    job.die("n0.w1", signal=0, exit_code=1)
    assert job.stop is not None
    assert job.told(MigrationStarted) == []


def test_a_straggler_is_moved_with_the_cause_that_was_found(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    see(job, k.HW_SLOWDOWN, "GPU-2")
    for _ in range(900):
        job.boundary += 1
        for worker in ("n0.w0", "n0.w1"):
            job.waited_s[worker] = job.waited_s.get(worker, 0.0) + 0.04
        job.tick(0.05)
        if job.told(MigrationStarted):
            break
    (verdict,) = [v for v in job.told(HealthVerdict) if v.rule == "straggler"]
    assert (verdict.action, verdict.ranks) == (k.MIGRATE, (2,))
    assert "on its device: gpu-hw-slowdown" in verdict.reason
    assert moved(job)[:1] == [("planned", 2)]


def slow_rank_2(job: FakeJob) -> HealthVerdict:
    for _ in range(900):
        job.boundary += 1
        for worker in ("n0.w0", "n0.w1"):
            job.waited_s[worker] = job.waited_s.get(worker, 0.0) + 0.04
        job.tick(0.05)
        if job.told(MigrationStarted):
            break
    (verdict,) = [v for v in job.told(HealthVerdict) if v.rule.startswith("straggler")]
    found: HealthVerdict = verdict
    return found


def test_a_straggler_whose_host_is_short_of_processors_is_moved_and_its_device_is_not_blamed(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    see(job, k.HOST_CPU, value=0.6, detail="the control group was throttled for 60 % of the time")
    verdict = slow_rank_2(job)
    assert (verdict.rule, verdict.action, verdict.ranks) == ("straggler-host", k.MIGRATE, (2,))
    assert "control group was throttled" in verdict.reason
    assert moved(job)[:1] == [("planned", 2)]
    assert job.core.status(job.now_s).quarantine == ()


def test_a_cause_that_is_over_is_not_named(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    see(job, k.HOST_CPU, value=0.6)
    see(job, k.HOST_CPU, value=0.0)
    for margin in (4.0, 20.0):
        see(job, k.TEMPERATURE_MARGIN, "GPU-2", value=margin)
    verdict = slow_rank_2(job)
    assert verdict.rule == "straggler"
    assert "show no cause" in verdict.reason


def test_evidence_that_comes_twice_for_one_fault_counts_as_one_migration(tmp_path: Path) -> None:
    job = job_with(tmp_path, spares=2, policy=dataclasses.replace(POLICY, limits=Limits(storm_migrations=2)))
    see(job, k.XID, "GPU-0", code=48)
    see(job, k.ECC_UNCORRECTED, "GPU-0")
    assert moved(job) == [("unplanned", 0)]
    see(job, k.XID, "GPU-1", code=79)
    assert moved(job) == [("unplanned", 0), ("unplanned", 1)]


def test_ranks_of_equal_pace_are_no_stragglers(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    for _ in range(900):
        job.boundary += 1
        job.tick(0.05)
    assert job.told(HealthVerdict) == []


def check_all(job: FakeJob, boundary: int, odd: str = "") -> None:
    for worker in job.ranks:
        digest = "wrong" if worker == odd else f"at {boundary}"
        job.say(worker, msg.ReplicaCheck(boundary, {"weight": digest}, ("weight",)))


def test_suspected_corruption_takes_the_state_of_the_replicas(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    check_all(job, 4)
    check_all(job, 5, odd="n0.w2")
    assert moved(job) == [("unplanned", 2)]
    (verdict,) = job.told(HealthVerdict)
    assert (verdict.rule, verdict.ranks) == ("corruption", (2,))
    assert job.sent(msg.Serve).keys() <= {"n0.w0", "n0.w1"}, "the suspect gives nothing"
    assert job.core.status(job.now_s).quarantine[0].startswith("GPU-2")


def test_dead_sources_are_shown_in_the_status(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    job.give(HealthSources({"nvidia": "dead: its process ended with signal 11", "network": "ok"}, {}))
    assert job.core.status(job.now_s).health == ("n0: nvidia: dead: its process ended with signal 11",)


def test_a_node_that_says_nothing_is_told_before_it_is_given_up(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    job.silent.add("n0")
    for _ in range(60):
        job.now_s += 0.1
        job.core.tick(job.now_s)
    job.silent.clear()
    job.tick()
    (verdict,) = job.told(HealthVerdict)
    assert (verdict.action, verdict.rule, verdict.subject) == (k.WATCH, "node-silent", "n0")


def two_nodes(folder: Path) -> FakeJob:
    """Ranks 0 and 1 on n0 with both spares, 2 and 3 on n1."""
    job = FakeJob(folder, 4, 2, nnodes=2, health=POLICY)
    job.train()
    for node in ("n0", "n1"):
        workers = [w for w in (*job.ranks, *job.spares) if w.startswith(node)]
        job.give(HealthSources({}, {w: f"GPU-{node}-{i}" for i, w in enumerate(workers)}), node)
    return job


def test_a_machine_that_has_to_be_restarted_loses_the_rank_of_the_device_and_then_hands_over_the_others(
    tmp_path: Path,
) -> None:
    job = two_nodes(tmp_path)
    job.give(HealthSignals((HealthSignal(k.RECOVERY_ACTION, "GPU-n1-0", code=2),)), "n1")
    for _ in range(6):
        found = moved(job)
    assert found == [("unplanned", 2), ("planned", 3)]
    assert job.core.status(job.now_s).quarantine[0].startswith("n1: ")


def test_nothing_is_done_that_would_leave_no_rank_to_go_on_from(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    see(job, k.SXID, "0000:c2:00", code=20034, detail="Fatal, Link 30")
    assert moved(job) == []
    assert outcomes(job) == [(k.REPLACE, "refused")]
    assert "nobody would be left" in job.told(HealthVerdict)[0].reason
