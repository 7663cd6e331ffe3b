"""From evidence to what is done, with the real core: agents and shims answer as real ones do."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from support.fake_job import FakeJob
from support.health_jobs import POLICY, job_with, moved, outcomes, see

from torchrelay.controller.settling import CALM_TICK_S
from torchrelay.protocol import messages as msg
from torchrelay.protocol.events import (
    DevicesUsed,
    HealthVerdict,
    MigrationFinished,
    MigrationStarted,
    MoveNotMade,
    QuarantineCleared,
)
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.health.policy import HealthPolicy, Limits
from torchrelay.protocol.messages import HealthSignal, HealthSignals, HealthSources


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
    assert job.core.user_requests.clear(msg.ClearRequest("GPU-3", "was reset")).cleared
    assert moved(job) == [("planned", 1)]


def test_evidence_that_asks_for_a_planned_move_before_training_has_begun_is_not_forgotten(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, health=POLICY)
    job.warm()
    job.give(msg.HealthSources({}, {f"n0.w{r}": f"GPU-{r}" for r in range(3)}), "n0")
    see(job, k.REMAP_PENDING, "GPU-2")
    assert job.told(MigrationStarted) == []
    job.train()
    assert moved(job) == [("planned", 2)]


def test_which_gpu_each_process_uses_is_told_once_and_again_where_it_is_another_one(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    for second in ("GPU-2", "GPU-2", "GPU-9"):
        job.give(msg.HealthSources({}, {}, (), {"n0.w0": "GPU-1", "n0.w1": second}), "n0")
    job.give(msg.HealthSources({}, {"n0.w0": "nvidia-driver"}), "n0")  # of an agent that does not say it
    assert job.told(DevicesUsed) == [
        DevicesUsed("n0", {"n0.w0": "GPU-1", "n0.w1": "GPU-2"}),
        DevicesUsed("n0", {"n0.w0": "GPU-1", "n0.w1": "GPU-9"}),
    ]


def test_an_agent_speaks_of_the_gpus_of_its_own_processes_alone_and_in_few_words(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, 4, nnodes=2)
    job.train()
    others = {"n1.w0": "GPU-1"}
    nobody = {f"n0.made-up-{n}": "GPU-1" for n in range(1000)}
    job.give(msg.HealthSources({}, {}, (), others | nobody), "n0")
    assert job.told(DevicesUsed) == []
    job.give(msg.HealthSources({}, {}, (), {**others, **nobody, "n0.w0": "x" * 1_000_000}), "n0")
    assert job.told(DevicesUsed) == [DevicesUsed("n0", {"n0.w0": "x" * 128})]


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
    assert not job.core.user_requests.clear(msg.ClearRequest("GPU-9", "x")).cleared
    assert job.core.user_requests.clear(msg.ClearRequest("GPU-3", "was reset")).cleared
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


def test_what_is_remembered_of_a_long_silence_grows_with_its_length_only_slowly(tmp_path: Path) -> None:
    """A controller that falls behind finds thousands of agents silent, and goes through all of it for each."""
    job = job_with(tmp_path)
    desk = job.core.health
    for half_seconds in range(2 * 3600):
        desk._hear("n0", half_seconds / 2, job.now_s + half_seconds / 2)
    noted = [seen.value for seen in desk.judge.history.of(k.NODE_SILENT, "n0", "n0")]
    assert noted[:5] == [3.0, 3.5, 4.0, 4.5, 5.0]
    assert noted[-1] > 3000
    assert len(noted) < 100


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


def test_a_node_that_may_not_be_barred_loses_the_rank_of_the_device_alone_and_it_is_said_why(tmp_path: Path) -> None:
    job = two_nodes(tmp_path)
    job.core.health.why_not_quarantined = lambda node: f"{node} would be one too many"
    job.give(HealthSignals((HealthSignal(k.RECOVERY_ACTION, "GPU-n1-0", code=2),)), "n1")
    for _ in range(6):
        found = moved(job)
    assert found == [("unplanned", 2)]
    assert job.core.status(job.now_s).quarantine == ()
    (verdict,) = job.told(HealthVerdict)
    assert verdict.quarantine == k.NOBODY
    assert "n1 is not put into quarantine: n1 would be one too many" in verdict.reason


def test_nothing_is_done_that_would_leave_no_rank_to_go_on_from(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    see(job, k.SXID, "0000:c2:00", code=20034, detail="Fatal, Link 30")
    assert moved(job) == []
    assert outcomes(job) == [(k.REPLACE, "refused")]
    assert "nobody would be left" in job.told(HealthVerdict)[0].reason
