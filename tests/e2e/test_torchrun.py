"""Pods whose command is torchrun, as it stands in most manifests: their ranks move, and the other pods' torchrun goes on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.kubectl import Kubectl, wait_for
from support.training import SCRIPTS, differences
from support.training_pods import WORDS_OF, Training, python

STEP, MIDDLE, LATER, LAST = 15, 30, 38, 41
"""Copies of journals that a pod has lost are made anew at boundaries: some are left after the middle."""
C10D = ("--rdzv-backend", "c10d", "--rdzv-id", "job", "--rdzv-endpoint", "{master}:29400")
INDEX = "JOB_COMPLETION_INDEX"
INDEXED = ("--node-rank", f"$({INDEX})", "--master-addr", "{master}", "--master-port", "29400")
"""As an Indexed Job's pods do it, which this cluster does not have: the number comes from an annotation of the pod."""
STATIC = ("--node-rank", "$(NODE_RANK)", "--master-addr", "{master}", "--master-port", "29400")


class Torchrun(Training):
    """`meeting`: how its launchers find each other. `owner`: `Job` for one of these for each pod. `processes`: in each pod;
    `sizes`: where they differ."""

    def __init__(self, kubectl: Kubectl, name: str, out: Path, protected: bool = True) -> None:
        super().__init__(kubectl, name, out, protected)
        self.meeting, self.owner, self.processes = C10D, "", 1
        self.sizes: tuple[int, ...] = ()

    @property
    def workers(self) -> int:
        """How many pods have ranks."""
        return len(self.sizes) or self.world_size // self.processes

    def pod(self, rank: int) -> dict[str, Any]:
        """`rank`: among pods."""
        pod = super().pod(rank)
        (container,) = pod["spec"]["containers"]
        gone = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        container["env"] = [e for e in container["env"] if e["name"] not in gone]
        container["env"].append({"name": "NODE_RANK", "value": str(rank)})
        if self.meeting == INDEXED:
            annotation = f"batch.kubernetes.io/{INDEX.lower().replace('_', '-')}"
            pod["metadata"]["annotations"][annotation] = str(rank)
            field = {"fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}
            container["env"].append({"name": INDEX, "valueFrom": field})
        meeting = [word.format(master=f"{self.name}-0.{self.name}") for word in self.meeting]
        sizes = [
            "--nnodes",
            str(self.workers),
            "--nproc-per-node",
            str(self.sizes[rank] if self.sizes else self.processes),
        ]
        script = [str(SCRIPTS / self.script), str(self.out), str(self.epochs)]
        container["command"] = [python(), "-m", "torch.distributed.run"]
        container["args"] = [*sizes, *meeting, *script]
        return pod

    def manifests(self) -> list[dict[str, Any]]:
        return [self._job(self.pod(r)) if self.owner else self.pod(r) for r in range(self.workers)]

    def wait_until_ready(self, spares: int | None = None) -> None:
        """`spares`: pods, all of whose processes are to be warm."""
        super().wait_until_ready((self.spares if spares is None else spares) * self.processes)

    def _job(self, pod: dict[str, Any]) -> dict[str, Any]:
        meta = {k: pod["metadata"][k] for k in ("labels", "annotations")}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": pod["metadata"]["name"], "namespace": "default"},
            "spec": {"backoffLimit": 6, "template": {"metadata": meta, "spec": pod["spec"]}},
        }

    def pod_of(self, rank: int) -> str:
        return str(self.resource()["ranks"][rank]["pod"])

    def ranks_of(self, pod: str) -> list[int]:
        return [r["rank"] for r in self.resource()["ranks"] if r["pod"] == pod]

    def move(self, **what: Any) -> None:
        """`rank`, or `pod`."""
        manifest = {
            "apiVersion": "torchrelay.dev/v1alpha1",
            "kind": "Migration",
            "metadata": {"name": f"{self.name}-wish", "namespace": "default"},
            "spec": {"job": self.name, **what},
        }
        self.kubectl.create(manifest)

    def kill_process(self, pod: str, local_rank: int = 0) -> None:
        """The training process, and not its launcher; from its own container, since others may not see its environment."""
        script = (
            WORDS_OF
            + "pids = [int(f.split('/')[2]) for f in glob.glob('/proc/[0-9]*/cmdline')\n"
            + "        if b'-u' in words(f)[1:2] and b'/training_scripts/' in b''.join(words(f)[2:3])\n"
            + f"        and b'LOCAL_RANK={local_rank}' in words(f.replace('cmdline', 'environ'))]\n"
            + f"[os.kill(pid, {int(signal.SIGKILL)}) for pid in pids]\n"
            + "print(len(pids))"
        )
        found = self.kubectl("exec", pod, "--container=train", "--", python(), "-I", "-S", "-c", script)
        assert int(found) == 1, found

    def wait_until_over(self) -> None:
        """Every container of every pod that is left has ended with 0."""

        def over() -> bool | None:
            left = [p for p in self.pods().values() if "deletionTimestamp" not in p["metadata"]]
            return True if {p["status"]["phase"] for p in left} <= {"Succeeded"} else None

        wait_for(f"the end of the pods of {self.name}", over, 60.0, self.describe)

    def wait_until_complete(self) -> None:
        """The Job of each pod."""

        def complete() -> bool | None:
            jobs = [j for j in self.kubectl.items("jobs") if j["metadata"]["name"].startswith(self.name)]
            return True if [j["status"].get("succeeded") for j in jobs] == [1] * self.workers else None

        wait_for("Jobs that are complete", complete, 90.0, self.describe)

    def delete(self) -> None:
        if self.owner:
            self.kubectl("delete", "job", "--all", "--wait=false", "--cascade=background")
        super().delete()


@pytest.fixture
def launched(
    kubectl: Kubectl, torchrelay: object, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Torchrun]:
    name = request.node.name.removeprefix("test_").replace("_", "-").replace("[", "-").strip("]")[:30].strip("-")
    job = Torchrun(kubectl, name.lower(), tmp_path)
    yield job
    job.delete()


@pytest.mark.parametrize("meeting", ["c10d", "static"])
def test_planned_and_forced(launched: Torchrun, undisturbed: Path, meeting: str) -> None:
    """First the rank in the pod with the launchers' common store, then the other one."""
    launched.meeting = C10D if meeting == "c10d" else STATIC
    launched.held = (STEP, MIDDLE, LATER)
    launched.start()
    launched.wait_until_ready()
    launched.wait_until_held(STEP)
    first = f"{launched.name}-0"
    rank = [launched.pod_of(r) for r in range(2)].index(first)
    launched.move(rank=rank)
    launched.wait_for_phase("quiesce")
    launched.let_pass(STEP)
    (migration,) = launched.wait_for_migration()
    assert (migration["kind"], migration["fromPod"], migration["stepsRedone"]) == ("planned", first, 0)
    launched.wait_until_ready()
    launched.let_pass(MIDDLE)
    launched.wait_until_held(LATER)
    launched.wait_until_copied(1 - rank)
    launched.delete_by_force(launched.pod_of(1 - rank))
    launched.let_pass(LATER)
    launched.wait_for_migration(count=2)
    launched.wait_until_succeeded()
    assert differences(undisturbed, launched.out, launched.world_size) == []
    launched.wait_until_over()


def test_a_killed_process_is_started_again_by_its_torchrun(launched: Torchrun, undisturbed: Path) -> None:
    """Twice, with one spare: the second time the process that was started again takes the rank over."""
    launched.held = (STEP, LATER)
    launched.start()
    launched.wait_until_ready()
    launched.wait_until_held(STEP)
    pod = launched.pod_of(0)
    launched.kill_process(pod)
    launched.let_pass(STEP)
    launched.wait_for_migration()
    launched.wait_until_ready()
    launched.wait_until_held(LATER)
    launched.kill_process(launched.pod_of(1))
    launched.let_pass(LATER)
    launched.wait_for_migration(count=2)
    launched.wait_until_succeeded()
    assert differences(undisturbed, launched.out, launched.world_size) == []
    assert pod in launched.pods()
    launched.wait_until_over()


@pytest.mark.parametrize(
    ("meeting", "step"), [("c10d", STEP), ("indexed", STEP), ("indexed", LAST)], ids=["c10d", "indexed", "late"]
)
def test_jobs_make_a_pod_again(launched: Torchrun, undisturbed: Path, meeting: str, step: int) -> None:
    """A Job for each pod. Of an Indexed Job, they are what each index is. Close to the end, the launcher in the pod that is made
    again may ask when training is over."""
    launched.meeting = C10D if meeting == "c10d" else INDEXED
    launched.owner, launched.restart_policy = "Job", "OnFailure"
    launched.held = (step,)
    launched.start()
    launched.wait_until_ready()
    launched.wait_until_held(step)
    launched.wait_until_copied(0)
    launched.delete_by_force(launched.pod_of(0))
    launched.let_pass(step)
    launched.wait_for_migration()
    launched.wait_until_succeeded()
    assert differences(undisturbed, launched.out, launched.world_size) == []
    launched.wait_until_complete()


def test_deleted_with_a_grace_period(launched: Torchrun, undisturbed: Path) -> None:
    launched.held = (STEP,)
    launched.start()
    launched.wait_until_ready()
    launched.wait_until_held(STEP)
    launched.kubectl("delete", "pod", launched.pod_of(1), "--wait=false")
    launched.wait_for_phase("quiesce")
    launched.let_pass(STEP)
    (migration,) = launched.wait_for_migration()
    launched.wait_until_succeeded()
    assert differences(undisturbed, launched.out, launched.world_size) == []
    assert (migration["kind"], migration["rank"], migration["stepsRedone"]) == ("planned", 1, 0)
    launched.wait_until_over()
