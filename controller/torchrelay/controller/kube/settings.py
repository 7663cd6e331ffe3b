"""The controller's settings in a cluster, from its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchrelay.protocol.errors import UserError
from torchrelay.protocol.kube import kube_names as kube

NODE_GRACE_S = 60.0
"""How long a node may not answer before pods on it whose ranks live elsewhere are deleted by force."""

TTL_AFTER_FINISHED_S = 86_400.0
"""How long a TrainingJob is kept after its end; below 0: for ever."""


@dataclass(frozen=True)
class ClusterSettings:
    """The settings. `namespace`, `pod`: its own. `host`: to listen on.

    `watched`: the namespace whose pods are looked after, or `*`.
    `address`: the pod's, to which `service` leads while this one leads; empty outside of a cluster.
    `health_policy`: the file of a policy of one's own, or empty. `health_observe`: no verdict of it is carried out.
    """

    namespace: str
    pod: str
    watched: str = "*"
    host: str = "0.0.0.0"
    relay_port: int = kube.RELAY_PORT
    enrol_port: int = kube.ENROLL_PORT
    node_grace_s: float = NODE_GRACE_S
    health_policy: str = ""
    health_observe: bool = False
    address: str = ""
    service: str = kube.CONTROLLER_SERVICE
    ready_port: int = kube.READY_PORT
    ttl_after_finished_s: float = TTL_AFTER_FINISHED_S
    metrics_port: int = 0
    """The port that answers Prometheus; 0: none."""
    platform_policy: str = ""
    """The file with what jobs may ask for; empty: anything."""
    dashboard_socket: str = ""
    """The socket where the dashboard beside the controller is told what happens; empty: there is none."""
    takes_asks: bool = False
    """Whether people with a token may ask for something on that dashboard."""
    notify_folder: str = ""
    """The folder with the file `url`, to which notices are posted, and `template` if there is one; empty: none are posted."""
    notify_on: str = ""
    """Kinds of notices, with commas; empty: all."""
    notify_form: str = "json"
    notify_cluster: str = "kubernetes"
    """What notices call this cluster."""

    @property
    def role(self) -> str:
        """The name of the installation's role: a Role in the namespace that is watched, or a ClusterRole."""
        return f"{self.service}-jobs"

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> ClusterSettings:
        """Read the settings. Raises UserError for a number that is none."""
        try:
            return cls(
                environ.get(kube.ENV_NAMESPACE) or kube.SYSTEM_NAMESPACE,
                environ.get(kube.ENV_POD) or environ.get("HOSTNAME") or "torchrelay-controller",
                environ.get(kube.ENV_WATCH_NAMESPACE) or "*",
                environ.get(kube.ENV_LISTEN_HOST) or "0.0.0.0",
                int(environ.get(kube.ENV_RELAY_PORT) or kube.RELAY_PORT),
                int(environ.get(kube.ENV_ENROLL_PORT) or kube.ENROLL_PORT),
                float(environ.get(kube.ENV_NODE_GRACE_S) or NODE_GRACE_S),
                environ.get(kube.ENV_HEALTH_POLICY, ""),
                environ.get(kube.ENV_HEALTH_OBSERVE) == "1",
                environ.get(kube.ENV_POD_IP, ""),
                environ.get(kube.ENV_SERVICE) or kube.CONTROLLER_SERVICE,
                ttl_after_finished_s=float(environ.get(kube.ENV_TTL_AFTER_FINISHED_S) or TTL_AFTER_FINISHED_S),
                metrics_port=int(environ.get(kube.ENV_METRICS_PORT) or 0),
                platform_policy=environ.get(kube.ENV_PLATFORM_POLICY, ""),
                dashboard_socket=environ.get(kube.ENV_DASHBOARD_SOCKET, ""),
                takes_asks=bool(environ.get(kube.ENV_DASHBOARD_TOKENS)),
                notify_folder=environ.get(kube.ENV_NOTIFY_FOLDER, ""),
                notify_on=environ.get(kube.ENV_NOTIFY_ON, ""),
                notify_form=environ.get(kube.ENV_NOTIFY_FORM) or "json",
                notify_cluster=environ.get(kube.ENV_NOTIFY_CLUSTER) or "kubernetes",
            )
        except ValueError as e:
            raise UserError(
                "TORCHRELAY_RELAY_PORT, TORCHRELAY_ENROLL_PORT, TORCHRELAY_METRICS_PORT, TORCHRELAY_NODE_GRACE_S and "
                f"TORCHRELAY_TTL_AFTER_FINISHED_S are numbers: {e}"
            ) from e
