"""The settings that the agent in a pod gets through its environment, which the webhook writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchrelay.protocol.errors import UserError

RUN_FOLDER = Path("/run/torchrelay")
KEPT_FOLDER = Path("/run/torchrelay-kept")
TOKEN_FILE = Path("/var/run/secrets/torchrelay/token")


@dataclass(frozen=True)
class PodConfig:
    """The settings of the agent in a pod. `controller`, `enrolment`: HOST:PORT.

    `authority`: PEM of the authority that signs the controller's certificate. `kept`: where the pod's processes keep copies of
    ranks' states.
    `host`: the pod's address. `leave_s`: how long the agent stays after its pod was told to end and the training process is gone,
    so that its journals can be fetched. `end_s`: what a process may take to end by itself. `orphan_s`: how long a controller may be
    away before an agent without a process to care for ends. `restarts`: whether the kubelet may start the training container again.
    """

    namespace: str
    pod: str
    uid: str
    host: str
    controller: str
    enrolment: str
    authority: bytes
    run_folder: Path = RUN_FOLDER
    token_file: Path = TOKEN_FILE
    leave_s: float = 20.0
    end_s: float = 30.0
    orphan_s: float = 60.0
    restarts: bool = True
    kept: Path = KEPT_FOLDER
    metrics_port: int = 0
    """The port at the pod's address that answers Prometheus; 0: none."""
    training_user: int | None = None
    """The user that training runs as. None: the user of the training container's image."""

    @property
    def node(self) -> str:
        """The node's name. A pod is a node to the controller; a pod that is made again under the same name is another node."""
        return f"{self.pod}:{self.uid[:8]}"

    @property
    def socket(self) -> Path:
        return self.run_folder / "agent.sock"

    @property
    def shim_token(self) -> Path:
        return self.run_folder / "shim-token"

    @property
    def authorities(self) -> Path:
        return self.run_folder / "authorities"

    @property
    def names_given(self) -> Path:
        return self.run_folder / "names-given"

    @property
    def begun_again(self) -> Path:
        return self.run_folder / "begun-again"

    @property
    def journals(self) -> Path:
        return self.run_folder / "journal"

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> PodConfig:
        """Read the settings. Raises UserError if a variable is missing."""

        def need(name: str) -> str:
            if not (value := environ.get(f"TORCHRELAY_{name}")):
                raise UserError(f"TORCHRELAY_{name} is not set; the webhook sets it in pods that it has changed")
            return value

        return cls(
            namespace=need("NAMESPACE"),
            pod=need("POD"),
            uid=need("POD_UID"),
            host=need("POD_IP"),
            controller=need("CONTROLLER"),
            enrolment=need("ENROLL"),
            authority=need("CA").encode(),
            training_user=int(user) if (user := environ.get("TORCHRELAY_TRAINING_USER", "")).isdigit() else None,
            metrics_port=int(port) if (port := environ.get("TORCHRELAY_METRICS_PORT", "")).isdigit() else 0,
            restarts=environ.get("TORCHRELAY_RESTART_POLICY") != "Never",
        )
