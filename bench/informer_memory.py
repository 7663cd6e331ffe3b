"""The controller's memory in a large cluster: its real process against an API server in memory, over HTTP.

Prints one JSON object: resident MiB with nothing there, after everything was listed, after each pod has changed, and the most
that it ever was. Pods are as the webhook and a kubelet leave them, with managed fields, and about as large as real ones.
"""

import argparse
import asyncio
import copy
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.http_api import HttpApi

from torchrelay.webhook.injection.inject import injected
from torchrelay.webhook.settings import WebhookSettings

PODS_OF_A_NODE = 8
MIB = 1 << 20
STAMP = "2026-01-01T00:00:00Z"
AUTHORITY = "-----BEGIN CERTIFICATE-----\n" + "MIIB" * 180 + "\n-----END CERTIFICATE-----\n"


def training_pod(job: str, rank: int, size: int, node: str) -> dict:
    """Return a pod as an operator makes it, with what a kubelet writes."""
    name = f"{job}-worker-{rank}"
    env = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "MASTER_ADDR": f"{job}-master-0",
        "MASTER_PORT": 23456,
        "PYTHONUNBUFFERED": 1,
    }
    env |= {f"NCCL_SETTING_{i}": "some value" for i in range(8)}
    token = {"name": "kube-api-access-x7k2p", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    states = ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    started = {"running": {"startedAt": STAMP}}
    containers = [
        {"name": c, "ready": True, "started": True, "restartCount": 0, "state": started, "image": f"team/{c}:7"}
        | {"imageID": f"team/{c}@sha256:{'0' * 64}", "containerID": f"containerd://{'1' * 64}"}
        for c in ("pytorch", "torchrelay-init", "torchrelay-agent")
    ]
    fields = {f"f:field-{i}": {"f:value": {}, "f:name": {}} for i in range(80)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"{hash(name) & 0xFFFFFFFF:08x}-0000-4000-8000-{rank:012}",
            "creationTimestamp": STAMP,
            "annotations": {"torchrelay.dev/inject": "true", "torchrelay.dev/spares": "1"},
            "labels": {"training.kubeflow.org/job-name": job, "training.kubeflow.org/replica-index": str(rank)},
            "ownerReferences": [
                {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": job, "uid": f"uid-{job}"}
            ],
            "managedFields": [{"manager": m, "fieldsV1": copy.deepcopy(fields)} for m in ("operator", "kubelet")],
        },
        "spec": {
            "restartPolicy": "OnFailure",
            "nodeName": node,
            "tolerations": [{"key": f"key-{i}", "operator": "Exists", "effect": "NoExecute"} for i in range(3)],
            "containers": [
                {
                    "name": "pytorch",
                    "image": "team/train:7",
                    "command": ["python", "-m", "train.main", "--config", "big.toml"],
                    "env": [{"name": k, "value": str(v)} for k, v in env.items()],
                    "resources": {"requests": {"cpu": "8", "memory": "64Gi"}, "limits": {"nvidia.com/gpu": "1"}},
                    "volumeMounts": [token, {"name": "data", "mountPath": "/data"}],
                }
            ],
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": token["name"], "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
            ],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [{"type": t, "status": "True", "lastTransitionTime": STAMP} for t in states],
            "containerStatuses": containers,
        },
    }


def node(name: str) -> dict:
    images = [
        {"names": [f"registry/image-{i}@sha256:{'0' * 64}", f"registry/image-{i}:1"], "sizeBytes": 1} for i in range(50)
    ]
    labels = {f"nvidia.com/label-{i}": "value" for i in range(40)} | {"kubernetes.io/hostname": name}
    conditions = [
        {"type": t, "status": "True", "reason": "r", "message": "m" * 40} for t in ("Ready", "KernelDeadlock")
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels},
        "spec": {},
        "status": {"conditions": conditions, "images": images},
    }


def migration(job: str) -> dict:
    phases = [
        {"phase": p, "at": STAMP, "seconds": 0.1, "reason": "because"} for p in ("fence", "prepare", "first_step")
    ]
    status = {"outcome": "committed", "kind": "unplanned", "rank": 1, "phases": phases, "decisions": ["d" * 200] * 5}
    meta = {"name": f"{job}-1", "namespace": "team", "annotations": {"torchrelay.dev/origin": "controller"}}
    return {
        "apiVersion": "torchrelay.dev/v1alpha1",
        "kind": "Migration",
        "metadata": meta,
        "spec": {"job": job},
        "status": status,
    }


def fill(api: HttpApi, jobs: int, size: int) -> int:
    """Fill the API server. Return how large all pods are together, as JSON."""
    settings, total_bytes = WebhookSettings(sidecar="native"), 0
    for number in range(jobs * size // PODS_OF_A_NODE):
        api.put("nodes", node(f"node-{number}"))
    for number in range(jobs):
        job = f"llama-{number}"
        api.put("migrations", migration(job))
        for rank in range(size):
            where = f"node-{(number * size + rank) // PODS_OF_A_NODE}"
            pod, decision = injected(training_pod(job, rank, size, where), settings, AUTHORITY)
            assert not decision.denied, decision
            total_bytes += len(json.dumps(api.put("pods", pod)))
    return total_bytes


class Controller:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process, self._seen = process, psutil.Process(process.pid)

    @property
    def resident_mib(self) -> float:
        return round(self._seen.memory_info().rss / MIB, 1)

    @property
    def peak_mib(self) -> float:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return round(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024, 1)

    async def calm(self) -> None:
        """Wait until the controller has nothing left to do."""
        while True:
            before_s = sum(self._seen.cpu_times()[:2])
            await asyncio.sleep(2.0)
            if sum(self._seen.cpu_times()[:2]) - before_s < 0.2:
                return


async def measure(jobs: int, size: int) -> dict[str, float]:
    api = HttpApi()
    total_bytes = fill(api, jobs, size)
    with tempfile.TemporaryDirectory() as folder:
        async with api.served(Path(folder)) as config:
            env = os.environ | {"KUBECONFIG": str(config), "TORCHRELAY_LISTEN_HOST": "127.0.0.1"}
            process = await asyncio.create_subprocess_exec(sys.executable, "-m", "torchrelay.controller.kube", env=env)
            try:
                controller, began_s = Controller(process), time.monotonic()
                await api.wait_until(lambda: bool(api.of("leases").objects))
                empty_mib = controller.resident_mib
                await api.wait_for_watch("pods")
                listed_s = time.monotonic() - began_s
                await controller.calm()
                found = {"empty_mib": empty_mib, "listed_s": round(listed_s, 1), "listed_mib": controller.resident_mib}
                for pod in list(api.of("pods").objects.values()):
                    api.put("pods", copy.deepcopy(pod))
                    await asyncio.sleep(0)
                await controller.calm()
                found |= {"changed_mib": controller.resident_mib, "peak_mib": controller.peak_mib}
            finally:
                process.terminate()
                await process.wait()
    pods = {"jobs": jobs, "pods": jobs * size, "pod_bytes": total_bytes // (jobs * size)}
    return pods | found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--pods-of-a-job", type=int, default=10)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(measure(given.jobs, given.pods_of_a_job))))


if __name__ == "__main__":
    main()
