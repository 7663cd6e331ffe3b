"""Installs torchrelay from `deploy/kustomize`, with what a cluster without our images needs to be changed, and nothing else."""

from __future__ import annotations

from typing import Any

import yaml

from support.kubectl import Kubectl, wait_for
from support.training_pods import IMAGE, NODES, ROOT, host_volumes, python
from torchrelay.protocol.kube import kube_names as kube

NAMESPACE = kube.SYSTEM_NAMESPACE
CONTROLLER = "torchrelay-controller"
REPLICAS = {CONTROLLER: 2, "torchrelay-webhook": 1}
CONTROLLERS = "--selector=app.kubernetes.io/component=controller"
WEBHOOKS = "--selector=app.kubernetes.io/component=webhook"
FIRST_NODE = {"kubernetes.io/hostname": NODES[0]}
"""Where the controller is: tests unplug the others."""


class Installation:
    def __init__(self, kubectl: Kubectl) -> None:
        self.kubectl = kubectl

    def install(self) -> None:
        # Kubernetes 1.20 does not know rules in definitions, nor all fields of the webhook, and drops them.
        self.kubectl("apply", "--validate=false", f"--filename={ROOT / 'deploy/crds'}")
        text = (ROOT / "deploy/kustomize/torchrelay.yaml").read_text()
        manifests = [_adapted(m) for m in yaml.safe_load_all(text) if m]
        if "policy/v1" not in self.kubectl("api-versions").split():
            for manifest in manifests:
                if manifest["kind"] == "PodDisruptionBudget":
                    manifest["apiVersion"] = "policy/v1beta1"
        self.kubectl("apply", "--validate=false", "--filename=-", stdin=yaml.safe_dump_all(manifests))
        for name in REPLICAS:
            self._wait_until_rolled_out(name)
        wait_for("a webhook that takes part", self._takes_part, 60.0, self.logs)

    def put(self, deployment: dict[str, Any]) -> None:
        """Another form of one of its Deployments, and wait until all of its pods are of it."""
        self.kubectl("apply", "--validate=false", "--filename=-", stdin=yaml.safe_dump(_adapted(deployment)))
        self._wait_until_rolled_out(deployment["metadata"]["name"])

    def _takes_part(self) -> bool | None:
        """A pod that asks for it would be injected: nothing is made."""
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "probe", "namespace": "default", "annotations": {kube.INJECT: "true"}},
            "spec": {"containers": [{"name": "main", "image": IMAGE, "command": ["python", "train.py"]}]},
        }
        made = self.kubectl("create", "--dry-run=server", "--output=yaml", "--filename=-", stdin=yaml.safe_dump(pod))
        return True if kube.AGENT_CONTAINER in made else None

    def kill_controller(self) -> None:
        """Without a chance to hand anything over."""
        self.kubectl("delete", "pods", f"--namespace={NAMESPACE}", CONTROLLERS, "--force", "--grace-period=0")

    def leader(self) -> str:
        """The pod that has the Lease."""
        lease = self.kubectl.get("lease", CONTROLLER, f"--namespace={NAMESPACE}")
        return lease["spec"].get("holderIdentity") or ""

    def ready_pods(self) -> list[str]:
        """Of the controller."""
        pods = self.kubectl.items("pods", f"--namespace={NAMESPACE}", CONTROLLERS)
        return [
            p["metadata"]["name"]
            for p in pods
            if any(c["type"] == "Ready" and c["status"] == "True" for c in p["status"].get("conditions", ()))
        ]

    def delete_pod(self, name: str) -> None:
        self.kubectl("delete", "pod", name, f"--namespace={NAMESPACE}", "--force", "--grace-period=0")

    def restore(self, name: str = CONTROLLER) -> None:
        """As many replicas as there are otherwise."""
        self.scale(REPLICAS[name], name)

    def scale(self, replicas: int, name: str = CONTROLLER) -> None:
        deployment = f"deployment/{name}"
        self.kubectl("scale", f"--namespace={NAMESPACE}", deployment, f"--replicas={replicas}")
        if replicas:
            self._wait_until_rolled_out(name)
            return
        selector = CONTROLLERS if name == CONTROLLER else WEBHOOKS
        pods = ("pods", f"--namespace={NAMESPACE}", selector)
        wait_for(f"the end of {name}", lambda: None if self.kubectl.items(*pods) else True, 120.0, self.logs)

    def begin_upgrade(self) -> None:
        """To a version that differs by an annotation: all pods of torchrelay are replaced, as the manifests have it."""
        for name in REPLICAS:
            self.kubectl("rollout", "restart", f"--namespace={NAMESPACE}", f"deployment/{name}")

    def wait_until_upgraded(self) -> None:
        for name in REPLICAS:
            self._wait_until_rolled_out(name)

    def _wait_until_rolled_out(self, name: str) -> None:
        status = ("rollout", "status", f"--namespace={NAMESPACE}", f"deployment/{name}", "--watch=false")
        wait_for(f"all of {name}", lambda: True if "successfully" in self.kubectl(*status) else None, 150.0, self.logs)

    def logs(self) -> str:
        text = self.kubectl("get", "pods", f"--namespace={NAMESPACE}", "--output=wide")
        for selector, container in ((CONTROLLERS, "controller"), (CONTROLLERS, "dashboard"), (WEBHOOKS, "webhook")):
            for previous in (False, True):
                which = (f"--container={container}", "--tail=300", f"--previous={str(previous).lower()}")
                try:
                    text += self.kubectl("logs", f"--namespace={NAMESPACE}", selector, *which)
                except AssertionError as e:
                    text += f"{e}\n"  # it is just being replaced, or there was none before it
        return text


def _adapted(manifest: dict[str, Any]) -> dict[str, Any]:
    volumes, mounts = host_volumes()
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    if kind == "Deployment":
        manifest["spec"]["replicas"] = REPLICAS[name]
        spec = manifest["spec"]["template"]["spec"]
        for container in spec["containers"]:
            container["image"], container["command"][0] = IMAGE, python()
            container.setdefault("volumeMounts", []).extend(mounts)
        spec.setdefault("volumes", []).extend(volumes)
        # This machine's Python may be in a folder of root's.
        spec["securityContext"] |= {"runAsNonRoot": False, "runAsUser": 0, "runAsGroup": 0}
        spec["nodeSelector"] = FIRST_NODE
    elif kind == "ConfigMap" and name == "torchrelay-webhook":
        settings = yaml.safe_load(manifest["data"]["webhook.yaml"])
        named = [{**v, "name": f"relay-{v['name']}"} for v in volumes]
        mounted = [{**m, "name": f"relay-{m['name']}"} for m in mounts]
        settings["agent"] |= {"image": IMAGE, "commandPrefix": [python()], "volumes": named, "volumeMounts": mounted}
        manifest["data"]["webhook.yaml"] = yaml.safe_dump(settings)
    return manifest
