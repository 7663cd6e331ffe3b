"""torchrun with two processes in each pod: a process is lost alone, and a pod with both of its ranks."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.test_policies import told
from e2e.test_torchrun import STATIC, Torchrun
from support.kube_install import Installation
from support.kubectl import Kubectl, wait_for
from support.training import differences
from support.training_pods import NODES, Training

STEP, MIDDLE, LATER, EPOCHS = 15, 30, 45, 6


@pytest.fixture(scope="module")
def undisturbed(kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What four ranks without torchrelay, each in a pod of its own, have left behind."""
    out = tmp_path_factory.mktemp("undisturbed")
    training = Training(kubectl, "undisturbed-4", out, protected=False)
    training.world_size, training.epochs = 4, EPOCHS
    training.start()
    training.wait_until_succeeded()
    training.delete()
    return out


@pytest.fixture
def launched(
    kubectl: Kubectl, torchrelay: object, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Torchrun]:
    job = Torchrun(kubectl, request.node.name.removeprefix("test_").replace("_", "-")[:24].strip("-"), tmp_path)
    job.world_size, job.processes, job.epochs = 4, 2, EPOCHS
    yield job
    job.delete()


def test_a_pod_is_lost_then_one_moves(launched: Torchrun, undisturbed: Path) -> None:
    """Both ranks of a pod at once, by force; then both of the other pod, one after the other, before it is deleted."""
    launched.held = (STEP, MIDDLE, LATER)
    launched.start()
    launched.wait_until_ready()
    launched.wait_until_held(STEP)
    lost = launched.pod_of(0)
    ranks = launched.ranks_of(lost)
    assert len(ranks) == 2
    for rank in ranks:
        launched.wait_until_copied(rank)
    launched.delete_by_force(lost)
    launched.let_pass(STEP)
    (migration,) = launched.wait_for_migration()
    assert (migration["kind"], migration["fromPod"], migration["ranks"]) == ("unplanned", lost, ranks)
    launched.wait_until_ready()
    (spare,) = {launched.pod_of(rank) for rank in ranks}
    assert spare not in (lost, launched.pod_of(next(r for r in range(4) if r not in ranks)))
    launched.wait_until_held(MIDDLE)
    left = launched.pod_of(next(r for r in range(4) if r not in ranks))
    launched.move(pod=left)
    let_move(launched, MIDDLE, LATER)
    moved = launched.wait_for_migration(count=3)[1:]
    assert [(m["kind"], m["fromPod"], m["stepsRedone"]) for m in moved] == [("planned", left, 0)] * 2
    launched.wait_until_succeeded()
    assert differences(undisturbed, launched.out, launched.world_size) == []
    wait_for("the end of the pod that was left", lambda: left not in launched.pods() or None, 60.0, launched.describe)
    launched.wait_until_over()


def quiescing(launched: Torchrun) -> int:
    """How many planned moves have all that they need, and wait for a boundary, or have been made."""
    planned = [m for m in launched.migrations() if m.get("kind") == "planned"]
    return sum(any(p["phase"] == "quiesce" for p in m.get("phases", ())) for m in planned)


def let_move(launched: Torchrun, *steps: int) -> None:
    """One rank after the other: each while all wait before one of the steps."""
    for count, step in enumerate(steps, 1):
        wait_for(f"planned move {count}", lambda n=count: quiescing(launched) >= n or None, 60.0, launched.describe)
        launched.let_pass(step)


def test_a_pod_is_deleted_with_a_grace_period(launched: Torchrun, undisturbed: Path) -> None:
    """Its torchrun hands the signal on to both processes, and waits for them."""
    launched.held = (STEP, LATER)
    launched.start()
    launched.wait_until_ready()
    launched.wait_until_held(STEP)
    pod = launched.pod_of(3)
    launched.kubectl("delete", "pod", pod, "--wait=false")
    let_move(launched, STEP, LATER)
    moved = launched.wait_for_migration(count=2)
    assert [(m["kind"], m["fromPod"], m["stepsRedone"]) for m in moved] == [("planned", pod, 0)] * 2
    launched.wait_until_succeeded()
    assert differences(undisturbed, launched.out, launched.world_size) == []
    wait_for("the end of the pod", lambda: pod not in launched.pods() or None, 60.0, launched.describe)
    launched.wait_until_over()


def test_a_node_is_drained(launched: Torchrun, undisturbed: Path) -> None:
    """By `kubectl drain`, which tries again until both processes of the pod have moved."""
    launched.held, launched.nodes = (STEP, LATER), NODES[:2]
    launched.start()
    launched.wait_until_ready()
    launched.wait_until_held(STEP)
    wait_for("a budget", lambda: launched.kubectl.items("pdb") or None, 20.0, launched.describe)
    pod = f"{launched.name}-1"
    chosen = f"--pod-selector=torchrelay.dev/job={launched.name}"
    command = ["kubectl", "drain", NODES[1], chosen, "--force", "--delete-emptydir-data", "--timeout=120s"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as drain:
        try:
            let_move(launched, STEP)
            launched.wait_for_migration()
            assert "deletionTimestamp" not in launched.pods()[pod]["metadata"], "a rank lives there still"
            let_move(launched, STEP, LATER)
            moved = launched.wait_for_migration(count=2)
            said, _ = drain.communicate(timeout=120)
        finally:
            drain.kill()
            launched.kubectl("uncordon", NODES[1])
    assert drain.returncode == 0, said
    assert "disruption budget" in said
    assert [(m["kind"], m["fromPod"], m["stepsRedone"]) for m in moved] == [("planned", pod, 0)] * 2
    launched.wait_until_succeeded()
    assert differences(undisturbed, launched.out, launched.world_size) == []
    launched.wait_until_over()


def test_three_processes_in_a_pod_under_jobs(launched: Torchrun, kubectl: Kubectl, tmp_path: Path) -> None:
    """What the Job makes again parks, all three of it, and both Jobs complete."""
    before = Torchrun(kubectl, "undisturbed-6", tmp_path / "undisturbed", protected=False)
    before.out.mkdir()
    for job in (before, launched):
        job.world_size, job.processes, job.epochs = 6, 3, EPOCHS
    before.start()
    before.wait_until_succeeded()
    before.delete()
    launched.owner, launched.restart_policy, launched.held = "Job", "OnFailure", (STEP,)
    launched.start()
    launched.wait_until_ready()
    launched.wait_until_held(STEP)
    lost = launched.pod_of(0)
    ranks = launched.ranks_of(lost)
    for rank in ranks:
        launched.wait_until_copied(rank)
    launched.delete_by_force(lost)
    launched.let_pass(STEP)
    (migration,) = launched.wait_for_migration()
    assert (migration["kind"], migration["fromPod"], migration["ranks"]) == ("unplanned", lost, ranks)
    launched.wait_until_succeeded()
    assert differences(before.out, launched.out, launched.world_size) == []
    launched.wait_until_complete()


def test_one_process_is_killed(launched: Torchrun, undisturbed: Path) -> None:
    """Its neighbour trains on where it is. Then the neighbour's rank is lost, and its own again."""
    launched.meeting = STATIC
    launched.held = (STEP, MIDDLE, LATER)
    launched.start()
    launched.wait_until_ready()
    launched.wait_until_held(STEP)
    pod = launched.pod_of(0)
    assert launched.ranks_of(pod) == [0, 1]
    launched.kill_process(pod, local_rank=0)
    launched.let_pass(STEP)
    (migration,) = launched.wait_for_migration()
    assert (migration["kind"], migration["rank"], migration["fromPod"]) == ("unplanned", 0, pod)
    assert launched.ranks_of(pod) == [1]
    launched.wait_until_ready(
        spares=2
    )  # one has been made; of the pod and of the first spare's pod, one process is left
    launched.wait_until_held(MIDDLE)
    launched.kill_process(pod, local_rank=1)
    launched.let_pass(MIDDLE)
    launched.wait_for_migration(count=2)
    assert launched.pod_of(1) == launched.pod_of(
        0
    )  # beside the rank that moved before, and the new spare's pod stays whole
    launched.wait_until_held(LATER)
    launched.kill_process(launched.pod_of(2), local_rank=0)
    launched.let_pass(LATER)
    launched.wait_for_migration(count=3)
    launched.wait_until_succeeded()
    assert differences(undisturbed, launched.out, launched.world_size) == []
    assert pod in launched.pods()
    launched.wait_until_over()


def test_the_agent_of_a_pod_and_the_controller_are_killed_then_a_process(
    launched: Torchrun, undisturbed: Path, torchrelay: Installation
) -> None:
    """Both processes come back to the new agent, and the new controller learns of both ranks."""
    launched.held, launched.restart_policy = (STEP, LATER), "OnFailure"
    launched.start()
    launched.wait_until_ready()
    launched.wait_until_held(STEP)
    pod = launched.pod_of(1)
    launched.kill_agent(pod)

    def again() -> bool | None:
        log = launched.kubectl("logs", pod, "--container=torchrelay-agent")
        return True if launched.restarts(pod)["torchrelay-agent"] == 1 and "is there" in log else None

    wait_for("the agent, started again and with a controller", again, 60.0, launched.describe)
    torchrelay.kill_controller()
    launched.wait_until_adopted()
    launched.let_pass(STEP)
    launched.wait_until_held(LATER)
    assert launched.migrations() == []
    launched.kill_process(pod, local_rank=1)
    launched.let_pass(LATER)
    (migration,) = launched.wait_for_migration()
    assert (migration["kind"], migration["rank"] % 2, migration["stepsRedone"]) == ("unplanned", 1, 1)
    launched.wait_until_succeeded()
    assert differences(undisturbed, launched.out, launched.world_size) == []


def test_a_pod_is_lost_without_spares(launched: Torchrun, undisturbed: Path) -> None:
    """The other pod's ranks save what all need; its torchrun starts both processes again, and one pod is made."""
    launched.held, launched.spares = (STEP,), 0
    launched.asked = {"checkpoint-dir": f"{launched.out}/checkpoints"}
    launched.start()
    launched.wait_until_ready()
    launched.wait_until_held(STEP)
    lost = launched.pod_of(0)
    for rank in launched.ranks_of(lost):
        launched.wait_until_copied(rank)
    launched.kubectl("delete", "pod", lost, "--force", "--grace-period=0")
    launched.let_pass(STEP)
    (migration,) = launched.wait_for_migration(outcome="checkpoint")
    assert [r["rung"] for r in migration["rungs"] if r["outcome"] == "taken"] == ["jit-checkpoint"]
    launched.wait_until_succeeded()
    assert differences(undisturbed, launched.out, launched.world_size) == []
    pods = [launched.ranks_of(pod) for pod in {launched.pod_of(rank) for rank in range(4)}]
    assert sorted(pods) == [[0, 1], [2, 3]]
    launched.wait_until_over()


def test_a_script_that_fails_ends_all(launched: Torchrun) -> None:
    """As without torchrelay, and not 30 s later: each torchrun would wait that long for a neighbour that wants to be moved."""
    launched.environ = {"LEAVE": f"3:{MIDDLE}:raise"}
    launched.held = (STEP,)
    launched.start()
    launched.wait_until_ready()
    launched.let_pass(STEP)
    (why,) = wait_for("a job that failed", lambda: told(launched, "JobFailed") or None, 60.0, launched.describe)
    assert "the script failed on rank 3: RuntimeError: told to fail" in why
    workers = {f"{launched.name}-{number}" for number in range(launched.workers)}
    wait_for("the end of its pods", lambda: workers <= launched.ended() or None, 25.0, launched.describe)
    assert {launched.pods()[name]["status"]["phase"] for name in workers} == {"Failed"}
    assert launched.migrations() == []


def test_pods_of_different_sizes(launched: Torchrun) -> None:
    """It trains, unprotected, and says why."""
    launched.held = (STEP,)
    launched.world_size, launched.sizes = 3, (2, 1)
    launched.start()

    def why() -> str | None:
        status = launched.resource()
        return status["protectionReason"] if status.get("protection") == "unprotected" else None

    assert "all pods of a job must have as many" in wait_for("protection", why, 90.0, launched.describe)
    launched.let_pass(STEP)
    launched.wait_until_succeeded()
