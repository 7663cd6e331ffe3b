"""A spare's pod, made from a worker's."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from torchrelay.controller.kube.reconcilers.clone import own_claims, spare_pod
from torchrelay.protocol.errors import UserError

OWNER = {"metadata": {"name": "llama", "uid": "u-1"}}
WORKER: dict[str, Any] = {
    "metadata": {
        "name": "llama-worker-1",
        "namespace": "team",
        "labels": {
            "torchrelay.dev/job": "llama",
            "training.kubeflow.org/job-name": "llama",
            "torchrelay.dev/role": "worker",
        },
        "annotations": {"torchrelay.dev/inject": "true", "torchrelay.dev/injected": "0.1.0", "other": "x"},
        "ownerReferences": [{"kind": "PyTorchJob", "name": "llama"}],
    },
    "spec": {
        "nodeName": "n2",
        "hostname": "llama-worker-1",
        "subdomain": "llama",
        "somethingNewer": {"than": "us"},
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "side",
                "volumeMounts": [{"name": "sa", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
            },
            {
                "name": "train",
                "image": "team/llama:1",
                "resources": {"limits": {"nvidia.com/gpu": "8"}},
                "livenessProbe": {"tcpSocket": {"port": 1}},
                "env": [
                    {"name": "RANK", "value": "1"},
                    {"name": "WORLD_SIZE", "value": "4"},
                    {"name": "TORCHRELAY_ASK", "value": "1"},
                ],
                "volumeMounts": [
                    {"name": "data", "mountPath": "/data"},
                    {"name": "sa", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
                ],
            },
        ],
        "volumes": [{"name": "data"}, {"name": "sa"}],
    },
}


def trainer(pod: dict[str, Any]) -> dict[str, Any]:
    return next(c for c in pod["spec"]["containers"] if c["name"] == "train")


def test_the_training_container_is_parked() -> None:
    env = {e["name"]: e["value"] for e in trainer(spare_pod(WORKER, OWNER))["env"]}
    assert env["TORCHRELAY_SPARE"] == "1"
    assert env["WORLD_SIZE"] == "4"


def test_without_our_code_a_copy_could_not_train_as_that_rank() -> None:
    assert "RANK" not in {e["name"] for e in trainer(spare_pod(WORKER, OWNER))["env"]}


def test_image_resources_volumes_and_what_is_newer_than_us_are_kept() -> None:
    pod = spare_pod(WORKER, OWNER)
    assert trainer(pod)["image"] == "team/llama:1"
    assert trainer(pod)["resources"] == {"limits": {"nvidia.com/gpu": "8"}}
    assert pod["spec"]["volumes"] == [{"name": "data"}]
    assert pod["spec"]["somethingNewer"] == {"than": "us"}


def test_what_made_it_that_worker_is_gone() -> None:
    pod = spare_pod(WORKER, OWNER)
    assert not {"nodeName", "hostname", "subdomain"} & set(pod["spec"])
    assert "livenessProbe" not in trainer(pod)
    assert all(m["name"] != "sa" for c in pod["spec"]["containers"] for m in c["volumeMounts"])


def test_the_jobs_operator_does_not_take_it_for_its_own() -> None:
    meta = spare_pod(WORKER, OWNER)["metadata"]
    assert meta["labels"] == {"torchrelay.dev/job": "llama", "torchrelay.dev/role": "spare"}
    assert [(o["kind"], o["uid"]) for o in meta["ownerReferences"]] == [("TrainingJob", "u-1")]
    assert meta["annotations"] == WORKER["metadata"]["annotations"]


def test_preferences_go_in_beside_those_of_the_job() -> None:
    worker = copy.deepcopy(WORKER)
    own = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}, {"matchFields": []}]}
    worker["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": own}}
    never = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n3"]}
    affinity = spare_pod(worker, OWNER, [{"apart": {"weight": 100}}, {"never": never}])["spec"]["affinity"]
    assert affinity["podAntiAffinity"] == {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100}]}
    terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert all(never in t["matchExpressions"] for t in terms)
    assert terms[0]["matchExpressions"][0] == {"key": "gpu", "operator": "Exists"}


def test_the_worker_stays_as_it_is() -> None:
    before = copy.deepcopy(WORKER)
    spare_pod(WORKER, OWNER, [{"apart": {}}], "low")
    assert before == WORKER


def test_a_pod_that_nothing_was_put_into_is_not_copied() -> None:
    worker = copy.deepcopy(WORKER)
    trainer(worker)["env"].pop()
    with pytest.raises(UserError, match="no training container"):
        spare_pod(worker, OWNER)


def labelled(**labels: str) -> dict[str, Any]:
    worker = copy.deepcopy(WORKER)
    worker["metadata"]["labels"] |= labels
    return worker


COPIED = {
    "kueue.x-k8s.io/queue-name": "team",
    "sidecar.istio.io/inject": "true",
    "cost-center": "4711",
    "app.kubernetes.io/part-of": "llama",
}
COPIED_ANNOTATIONS = {
    "k8s.v1.cni.cncf.io/networks": "rdma",
    "scheduling.k8s.io/group-name": "llama",
    "sidecar.istio.io/status": "{}",
    "torchrelay.dev/inject": "true",
    "torchrelay.dev/injected": "0.1.0",
    "other": "x",
}


def test_labels_and_annotations_are_copied_whoever_they_are_for() -> None:
    worker = labelled(**COPIED)
    worker["metadata"]["annotations"] |= COPIED_ANNOTATIONS
    meta = spare_pod(worker, OWNER)["metadata"]
    assert COPIED.items() <= meta["labels"].items()
    assert meta["annotations"] == COPIED_ANNOTATIONS


@pytest.mark.parametrize(
    "name",
    [
        "training.kubeflow.org/replica-index",
        "batch.kubernetes.io/job-completion-index",
        "statefulset.kubernetes.io/pod-name",
        "controller-revision-hash",
        "kueue.x-k8s.io/pod-group-name",
        "torchrelay.dev/notes",
        "k8s.v1.cni.cncf.io/network-status",
    ],
)
def test_what_says_which_pod_it_was_is_not_copied(name: str) -> None:
    worker = labelled(**{name: "1"})
    worker["metadata"]["annotations"][name] = "1"
    meta = spare_pod(worker, OWNER)["metadata"]
    assert name not in meta["labels"]
    assert name not in meta["annotations"]
    assert meta["labels"]["torchrelay.dev/role"] == "spare"


def test_a_rank_s_own_volume_claim_is_not_shared_and_the_job_s_is() -> None:
    worker = copy.deepcopy(WORKER)
    own, shared = "scratch-llama-worker-1", "datasets"
    worker["spec"]["volumes"] += [
        {"name": "scratch", "persistentVolumeClaim": {"claimName": own}},
        {"name": "datasets", "persistentVolumeClaim": {"claimName": shared}},
    ]
    assert own_claims(worker) == {"scratch": own}
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast",
        "volumeName": "pv-17",
        "resources": {"requests": {"storage": "1Ti"}},
    }
    volumes = {v["name"]: v for v in spare_pod(worker, OWNER, claims={own: spec})["spec"]["volumes"]}
    like = {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "resources": {"requests": {"storage": "1Ti"}}}
    assert volumes["scratch"] == {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": like}}}
    assert volumes["datasets"]["persistentVolumeClaim"] == {"claimName": shared}


def test_a_job_whose_name_is_cut_at_a_dot_has_spares_with_legal_names() -> None:
    name = f"{'x' * 39}.70b"
    assert (
        spare_pod(labelled(**{"torchrelay.dev/job": name}), OWNER)["metadata"]["generateName"] == f"{'x' * 39}-spare-"
    )
