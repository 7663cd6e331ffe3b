"""Machines that have to go, as whoever runs them says: all their ranks move, and their quarantine ends with the notice."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from support.fake_job import FakeJob

from torchrelay.protocol.events import HealthVerdict, Log, MigrationFinished, MoveNotMade, QuarantineCleared
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.health.node_facts import NodeCondition, NodeEvidence, NodeFacts, Notice, Taint
from torchrelay.protocol.health.policy_file import default_policy
from torchrelay.protocol.messages import (
    CheckDevice,
    ClearRequest,
    DeviceChecked,
    HealthSignal,
    HealthSignals,
    HealthSources,
    QuarantineRequest,
)

RANKS_A_NODE = 8


def job_with(folder: Path, spares: int = RANKS_A_NODE) -> FakeJob:
    """Two nodes; the spares are on the first one."""
    job = FakeJob(folder, 2 * RANKS_A_NODE, spares, nnodes=2, health=default_policy())
    job.train()
    return job


def know(job: FakeJob, evidence: NodeEvidence, facts: NodeFacts, node: str = "n1") -> None:
    if signals := evidence.update(facts):
        job.core.evidence(node, HealthSignals(signals), job.now_s)
        job.tick(0.05)


def moved(job: FakeJob) -> list[tuple[str, int]]:
    for _ in range(3 * RANKS_A_NODE):
        job.settle()
        job.tick(0.5)
    job.settle()
    return [(e.kind, e.rank) for e in job.told(MigrationFinished) if e.outcome == "committed"]


@pytest.mark.parametrize(
    "facts",
    [
        NodeFacts(cordoned=True),
        NodeFacts(taints=(Taint("karpenter.sh/disrupted"),)),
        NodeFacts(notices=(Notice("termination", "spot instance, at 12:00"),)),
        NodeFacts(conditions=(NodeCondition("KernelDeadlock", "True", "DockerHung"),)),
        NodeFacts(conditions=(NodeCondition("SysLogsXIDError", "True", "XID 79"),)),
    ],
)
def test_a_machine_that_has_to_go_hands_over_all_its_ranks_without_losing_a_step(
    tmp_path: Path, facts: NodeFacts
) -> None:
    job = job_with(tmp_path)
    know(job, NodeEvidence(), facts)
    ranks = range(RANKS_A_NODE, 2 * RANKS_A_NODE)
    assert moved(job) == [("planned", rank) for rank in ranks], job.told(MoveNotMade)
    # Nothing is heard of an agent in this job that has no ranks any more.
    (verdict,) = [v for v in job.told(HealthVerdict) if v.rule != "node-silent"]
    assert verdict.reason.count(" on n1: ") == 1, verdict.reason
    assert (verdict.action, verdict.outcome, verdict.ranks) == (k.MIGRATE, "done", tuple(ranks))
    assert job.core.status(job.now_s).quarantine[0].startswith("n1: ")


def test_a_device_in_quarantine_hands_over_its_rank_alone_and_is_free_with_the_end_of_it(tmp_path: Path) -> None:
    job, evidence = job_with(tmp_path), NodeEvidence()
    for worker in ("n1.w0", "n1.w1"):
        job.core.job.workers[worker].devices = (f"GPU-{worker}",)
    know(job, evidence, NodeFacts(notices=(Notice("device-quarantine", "two XIDs", "GPU-n1.w1"),)))
    assert moved(job) == [("planned", RANKS_A_NODE + 1)], job.told(MoveNotMade)
    (verdict,) = [v for v in job.told(HealthVerdict) if v.rule == "device-quarantine"]
    assert (verdict.action, verdict.quarantine, verdict.ranks) == (k.MIGRATE, k.DEVICE, (RANKS_A_NODE + 1,))
    assert "two XIDs" in verdict.reason
    assert [q.split(":")[0] for q in job.core.status(job.now_s).quarantine] == ["GPU-n1.w1"]
    know(job, evidence, NodeFacts())
    assert job.core.status(job.now_s).quarantine == ()
    assert [c.subject for c in job.told(QuarantineCleared)] == ["GPU-n1.w1"]


@pytest.mark.parametrize(
    "facts",
    [
        NodeFacts(conditions=(NodeCondition("MemoryPressure", "True"),)),
        NodeFacts(conditions=(NodeCondition("Ready", "Unknown", "NodeStatusUnknown"),)),
        NodeFacts(conditions=(NodeCondition("SomethingElse", "True"),)),
        NodeFacts(taints=(Taint("nvidia.com/gpu", "present", "NoExecute"),)),
    ],
)
def test_what_does_not_end_the_machine_moves_nobody(tmp_path: Path, facts: NodeFacts) -> None:
    job = job_with(tmp_path)
    know(job, NodeEvidence(), facts)
    job.tick(5.0)
    assert job.told(MigrationFinished) == []
    assert job.core.status(job.now_s).quarantine == ()
    assert all(v.action == k.WATCH for v in job.told(HealthVerdict))


def test_a_kubelet_that_stays_silent_moves_before_its_pods_are_deleted(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    know(job, NodeEvidence(), NodeFacts(conditions=(NodeCondition("Ready", "Unknown"),)))
    job.tick(59.0)
    assert job.told(MigrationFinished) == []
    job.tick(3.0)
    assert len(moved(job)) == RANKS_A_NODE


def test_what_others_say_of_a_node_is_no_sign_of_life_of_its_agent(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    job.tick(1.0)
    heard_s = job.core.job.nodes["n1"].heard_s
    job.now_s += 2.0
    signals = NodeEvidence().update(NodeFacts(conditions=(NodeCondition("MemoryPressure", "True"),)))
    job.core.evidence("n1", HealthSignals(signals), job.now_s)
    job.core.evidence("n7", HealthSignals(signals), job.now_s)
    assert job.core.job.nodes["n1"].heard_s == heard_s
    job.tick(0.05)
    assert [(v.node, v.rule) for v in job.told(HealthVerdict)] == [("n1", "node-pressure")]


def test_a_notice_that_is_taken_back_lifts_the_quarantine_that_it_made(tmp_path: Path) -> None:
    job, evidence = job_with(tmp_path, spares=0), NodeEvidence()
    taint = Taint("node.kubernetes.io/unschedulable")
    know(job, evidence, NodeFacts(cordoned=True, taints=(taint,)))
    know(job, evidence, NodeFacts(cordoned=True))
    assert job.core.status(job.now_s).quarantine != (), "the cordon still holds"
    know(job, evidence, NodeFacts())
    assert job.core.status(job.now_s).quarantine == ()
    (cleared,) = job.told(QuarantineCleared)
    assert (cleared.subject, cleared.reason) == ("n1", "it is over: cordon")


def test_the_end_of_a_notice_heals_nothing_else(tmp_path: Path) -> None:
    job, evidence = job_with(tmp_path, spares=0), NodeEvidence()
    know(job, evidence, NodeFacts(cordoned=True))
    job.give(HealthSignals((HealthSignal(k.EDAC_UNCORRECTED, detail="1 UE"),)), "n1")
    know(job, evidence, NodeFacts())
    assert job.core.status(job.now_s).quarantine != ()


def test_a_second_notice_after_a_person_has_cleared_the_first_counts(tmp_path: Path) -> None:
    job, evidence = job_with(tmp_path, spares=0), NodeEvidence()
    know(job, evidence, NodeFacts(cordoned=True))
    assert job.core.health.clear(ClearRequest("n1", "looked at it")).cleared
    know(job, evidence, NodeFacts())
    job.tick(1.0)
    know(job, evidence, NodeFacts(cordoned=True))
    assert job.core.status(job.now_s).quarantine != ()


def in_quarantine(folder: Path) -> FakeJob:
    job = job_with(folder, spares=0)
    job.give(HealthSources({}, {"n1.w0": "nvidia-driver GPU-7"}), "n1")
    job.give(HealthSignals((HealthSignal(k.XID, "GPU-7", code=79),)), "n1")
    assert job.core.status(job.now_s).quarantine[0].startswith("GPU-7")
    job.core.take()
    return job


def ask(job: FakeJob, subject: str) -> list[tuple[str, object]]:
    reply = job.core.user_requests.clear(ClearRequest(subject, "was reset", True))
    assert reply.checking, reply.message
    orders, _ = job.core.take()
    return list(orders)


def test_a_check_that_is_passed_clears(tmp_path: Path) -> None:
    job = in_quarantine(tmp_path)
    assert ask(job, "GPU-7") == [("n1", CheckDevice("GPU-7"))]
    watched_only = (HealthSignal(k.ECC_LIFETIME, "GPU-7", value=3.0),)
    job.give(DeviceChecked("GPU-7", True, "looked at 4 times", watched_only), "n1")
    assert job.core.status(job.now_s).quarantine == ()
    (cleared,) = job.told(QuarantineCleared)
    assert cleared.reason == "was reset; a check was passed: looked at 4 times"


@pytest.mark.parametrize(
    ("found", "signals"),
    [
        (False, ()),
        (True, (HealthSignal(k.REMAP_PENDING, "GPU-7"),)),
        (True, (HealthSignal(k.TEMPERATURE_MARGIN, "GPU-7", value=1.0),)),
        (True, (HealthSignal(k.LINK_DOWN, "GPU-7", value=1.0),)),
    ],
)
def test_a_check_that_is_not_passed_does_not(tmp_path: Path, found: bool, signals: tuple[HealthSignal, ...]) -> None:
    job = in_quarantine(tmp_path)
    ask(job, "GPU-7")
    job.give(DeviceChecked("GPU-7", found, "nvidia does not answer", signals), "n1")
    assert job.core.status(job.now_s).quarantine != ()
    assert "the check was not passed" in job.told(Log)[-1].text


def test_an_answer_that_nobody_asked_for_clears_nothing(tmp_path: Path) -> None:
    job = in_quarantine(tmp_path)
    job.give(DeviceChecked("GPU-7", True, "well"), "n1")
    assert job.core.status(job.now_s).quarantine != ()


def test_a_device_that_no_node_has_cannot_be_checked(tmp_path: Path) -> None:
    job = in_quarantine(tmp_path)
    job.core.job.quarantine["GPU-9"] = "left behind"
    reply = job.core.user_requests.clear(ClearRequest("GPU-9", "was reset", True))
    assert (reply.cleared, reply.checking) == (False, False)


def test_a_node_that_a_person_puts_aside_hands_over_all_its_ranks_and_is_free_again_when_it_is_cleared(
    tmp_path: Path,
) -> None:
    job = job_with(tmp_path)
    reply = job.core.user_requests.quarantine(QuarantineRequest("n1", "a new switch"), job.now_s)
    assert (reply.accepted, len(reply.ranks)) == (True, RANKS_A_NODE)
    assert "a new switch" in job.core.job.quarantine["n1"]
    assert sorted(rank for _, rank in moved(job)) == list(reply.ranks)
    assert "node-quarantine" in [v.rule for v in job.told(HealthVerdict)]
    again = job.core.user_requests.quarantine(QuarantineRequest("n1", "once more"), job.now_s)
    assert "already" in again.message
    assert job.core.user_requests.clear(ClearRequest("n1", "it is done")).cleared
    once_more = job.core.user_requests.quarantine(QuarantineRequest("n1", "the switch again"), job.now_s)
    assert "the switch again" in job.core.job.quarantine["n1"], once_more


def test_ranks_that_wait_for_a_spare_stay_where_they_are_once_their_node_is_cleared(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, 4, 2, nnodes=2, health=default_policy())
    job.train()
    reply = job.core.user_requests.quarantine(QuarantineRequest("n0", "a new switch"), job.now_s)
    assert reply.message == "n0 is in quarantine; ranks 0, 1 move to spares"
    job.tick(0.05)
    assert {move.reason for move in job.told(MoveNotMade)} == {
        "every spare is on a device or node in quarantine; it moves as soon as there is one"
    }
    assert job.core.user_requests.clear(ClearRequest("n0", "it may stay")).cleared
    assert moved(job) == []


def test_the_last_node_that_a_job_can_use_is_not_put_aside(tmp_path: Path) -> None:
    """Its spares would be of no use any more, and nobody could leave it."""
    refusal = "is the only node that this job can use: its ranks have nowhere to go"
    alone = FakeJob(tmp_path, 2, 2, nnodes=1, health=default_policy())
    alone.train()
    reply = alone.core.user_requests.quarantine(QuarantineRequest("n0", "a new switch"), alone.now_s)
    assert (reply.accepted, reply.message) == (False, f"n0 {refusal}")
    assert not alone.core.job.quarantine
    job = job_with(tmp_path)
    assert job.core.user_requests.quarantine(QuarantineRequest("n1", "a new switch"), job.now_s).accepted
    reply = job.core.user_requests.quarantine(QuarantineRequest("n0", "a new switch"), job.now_s)
    assert (reply.accepted, reply.message) == (False, f"n0 {refusal}")


def test_what_a_person_puts_aside_is_of_this_job_or_refused(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    reply = job.core.user_requests.quarantine(QuarantineRequest("n7", "x"), job.now_s)
    assert not reply.accepted
    assert "no node and no device n7; it has n0, n1" in reply.message


def test_a_device_that_a_person_puts_aside_has_its_rank_moved_alone(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    rank = RANKS_A_NODE + 2
    worker = job.core.job.holder(rank)
    job.give(HealthSources({}, {worker.worker: "GPU-7"}), "n1")
    reply = job.core.user_requests.quarantine(QuarantineRequest("GPU-7", "it is tested"), job.now_s)
    assert (reply.accepted, reply.ranks) == (True, (rank,)), reply
    assert [each for _, each in moved(job)] == [rank]
    assert set(job.core.job.quarantine) == {"GPU-7"}


def test_a_policy_that_only_observes_puts_nothing_aside(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, 2, 1, nnodes=2, health=dataclasses.replace(default_policy(), observe=True))
    job.train()
    reply = job.core.user_requests.quarantine(QuarantineRequest("n1", "x"), job.now_s)
    assert not reply.accepted
    assert "only observes" in reply.message
    assert not job.core.job.quarantine


def test_ranks_of_a_job_that_is_not_protected_are_said_to_stay(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, 2, 1, nnodes=2, health=default_policy())
    job.train()
    job.core.job.protection, job.core.job.protection_reason = "off", "this torch is not known"
    reply = job.core.user_requests.quarantine(QuarantineRequest("n1", "x"), job.now_s)
    assert (reply.accepted, reply.ranks, reply.staying) == (True, (), (1,))
    assert "stays there all the same: this torch is not known" in reply.message
