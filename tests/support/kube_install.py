"""Installs torchrelay into the cluster of the end-to-end tests."""

from __future__ import annotations

from typing import Any

from support.kubectl import Kubectl, wait_for
from support.training_pods import IMAGE, ROOT, host_volumes, python
from torchrelay.protocol import kube_names as kube
from torchrelay.webhook.inject import injected
from torchrelay.webhook.settings import AgentSettings, Settings

NAMESPACE = kube.SYSTEM_NAMESPACE


class Installation:
    def __init__(self, kubectl: Kubectl) -> None:
        self.kubectl = kubectl
        self._authority = ""

    def install(self) -> None:
        self.kubectl("apply", f"--filename={ROOT / 'deploy/crds'}")
        self.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        self.kubectl.apply(*_controller())
        self._authority = wait_for("the controller's authority", self._read_authority, 90.0, self.logs)

    def inject(self, pod: dict[str, Any]) -> dict[str, Any]:
        """What the webhook does with a pod."""
        volumes, mounts = host_volumes()
        named = [{**v, "name": f"relay-{v['name']}"} for v in volumes]
        mounted = [{**m, "name": f"relay-{m['name']}"} for m in mounts]
        agent = AgentSettings(image=IMAGE, commandPrefix=[python()], volumes=named, volumeMounts=mounted)
        new, decision = injected(pod, Settings(agent=agent, sidecar=kube.CLASSIC), self._authority)
        assert new is not pod, decision
        assert not decision.denied, decision
        return new

    def kill_controller(self) -> None:
        """Without a chance to hand anything over."""
        selector = "--selector=app=torchrelay-controller"
        self.kubectl("delete", "pods", f"--namespace={NAMESPACE}", selector, "--force", "--grace-period=0")

    def scale(self, replicas: int) -> None:
        name = "deployment/torchrelay-controller"
        self.kubectl("scale", f"--namespace={NAMESPACE}", name, f"--replicas={replicas}")
        if replicas:
            self.kubectl("rollout", "status", f"--namespace={NAMESPACE}", name, "--timeout=50s")
            return
        pods = ("pods", f"--namespace={NAMESPACE}", "--selector=app=torchrelay-controller")
        wait_for("the controller's end", lambda: None if self.kubectl.items(*pods) else True, 60.0)

    def logs(self) -> str:
        text = self.kubectl("get", "pods", f"--namespace={NAMESPACE}", "--output=wide")
        return text + self.kubectl(
            "logs", f"--namespace={NAMESPACE}", "--selector=app=torchrelay-controller", "--tail=400"
        )

    def _read_authority(self) -> str | None:
        found = self.kubectl.items(
            "configmaps", f"--namespace={NAMESPACE}", "--field-selector=metadata.name=torchrelay-ca"
        )
        return found[0]["data"][kube.CA_KEY] if found else None


def _controller() -> list[dict[str, Any]]:
    volumes, mounts = host_volumes()
    labels = {"app": "torchrelay-controller"}
    name = {"name": "torchrelay-controller", "namespace": NAMESPACE}
    container = {
        "name": "controller",
        "image": IMAGE,
        "command": [python(), "-m", "torchrelay.controller.kube"],
        "env": [
            {"name": "TORCHRELAY_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
            {"name": "TORCHRELAY_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "readinessProbe": {"tcpSocket": {"port": kube.RELAY_PORT}, "periodSeconds": 1},
        "volumeMounts": mounts,
    }
    template = {
        "metadata": {"labels": labels},
        "spec": {
            "serviceAccountName": "torchrelay-controller",
            "nodeSelector": {"kubernetes.io/hostname": "node-1"},
            "containers": [container],
            "volumes": volumes,
        },
    }
    ports = [{"name": "relay", "port": kube.RELAY_PORT}, {"name": "enrol", "port": kube.ENROLL_PORT}]
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "torchrelay-controller"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", **name}],
    }
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": name},
        binding,
        {"apiVersion": "v1", "kind": "Service", "metadata": name, "spec": {"selector": labels, "ports": ports}},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": name,
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
        },
    ]
