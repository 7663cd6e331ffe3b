"""What the webhook is configured with: one YAML file, the same for the server and for `torchrelay inject`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from torchrelay.protocol.errors import UserError
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.logs.log_lines import LogFormat
from torchrelay.protocol.logs.log_records import LEVELS

AUTO = "auto"
SELF_MADE = "self"
SIDECARS = (AUTO, kube.NATIVE, kube.CLASSIC)
VERSION = metadata.version("torchrelay")
_HOST = f"{kube.CONTROLLER_SERVICE}.{kube.SYSTEM_NAMESPACE}.svc"


@dataclass(frozen=True)
class AgentSettings:
    """How the two added containers are started. `volumes` and `volumeMounts` go into both.

    If a cluster's images carry no torchrelay, it comes from such a volume, and `commandPrefix` says which Python runs it.
    """

    image: str = f"torchrelay/agent:{VERSION}"
    imagePullPolicy: str = "IfNotPresent"
    commandPrefix: list[str] = field(default_factory=lambda: ["python"])
    env: list[dict[str, Any]] = field(default_factory=list)
    volumes: list[dict[str, Any]] = field(default_factory=list)
    volumeMounts: list[dict[str, Any]] = field(default_factory=list)
    resources: dict[str, dict[str, str]] = field(
        default_factory=lambda: {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}
    )
    metricsPort: int = 0
    """Where agents answer Prometheus; 0: nowhere."""
    watchGPUs: bool = True
    """Lets the agent load NVIDIA's driver library, for reading alone, where training asks for NVIDIA GPUs."""
    logFormat: str = LogFormat.TEXT.value
    """Of the lines of agents and ranks: text or json."""
    logLevel: str = ""
    """Of agents: debug, info, warning or error; empty: their own."""


@dataclass(frozen=True)
class ControllerSettings:
    address: str = f"{_HOST}:{kube.RELAY_PORT}"
    enroll: str = f"{_HOST}:{kube.ENROLL_PORT}"
    caFile: str = "/etc/torchrelay/ca/ca.crt"


@dataclass(frozen=True)
class ServerSettings:
    """The server's settings.

    `certificates`: `self` (made and renewed by the webhook) or a folder with tls.crt and tls.key, renewed by others.
    """

    port: int = 8443
    certificates: str = SELF_MADE
    service: str = kube.WEBHOOK_SERVICE
    namespace: str = kube.SYSTEM_NAMESPACE
    secret: str = kube.WEBHOOK_CERT_SECRET
    configuration: str = kube.WEBHOOK_CONFIGURATION


@dataclass(frozen=True)
class WebhookSettings:
    """Field names are the keys of the file."""

    agent: AgentSettings = field(default_factory=AgentSettings)
    controller: ControllerSettings = field(default_factory=ControllerSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    sidecar: str = AUTO
    runSizeLimit: str = "1Gi"
    """Of the memory-backed folder with socket and journals. A limit, no reservation: what is written counts as the pod's."""


def load(path: Path) -> WebhookSettings:
    """Read the settings from a file. Raises UserError if the file cannot be read or does not fit."""
    try:
        values = yaml.safe_load(path.read_bytes())
    except (OSError, yaml.YAMLError) as e:
        raise UserError(f"the webhook's configuration {path} cannot be read: {e}") from e
    return parse(values or {}, str(path))


def parse(values: Any, source: str) -> WebhookSettings:
    """Make settings of a file's values. Raises UserError for an unknown key, or a value of another kind than the default."""
    settings: WebhookSettings = _fill(WebhookSettings(), values, source)
    if settings.sidecar not in SIDECARS:
        raise UserError(f"{source}: sidecar has to be one of {', '.join(SIDECARS)}, not {settings.sidecar!r}")
    for name, value, known in (
        ("logFormat", settings.agent.logFormat, [form.value for form in LogFormat]),
        ("logLevel", settings.agent.logLevel, ["", *LEVELS]),
    ):
        if value not in known:
            raise UserError(f"{source}: agent.{name} has to be one of {', '.join(filter(None, known))}, not {value!r}")
    if not settings.agent.image:
        raise UserError(f"{source}: agent.image is empty")
    return settings


def _fill(default: Any, values: Any, where: str) -> Any:
    if not isinstance(values, dict):
        raise UserError(f"{where} has to be a mapping, not {values!r}")
    known = {f.name for f in dataclasses.fields(default)}
    if unknown := sorted(set(values) - known, key=str):
        raise UserError(f"{where}: unknown key {', '.join(map(str, unknown))}; known are {', '.join(sorted(known))}")
    changes = {}
    for name, value in values.items():
        old = getattr(default, name)
        if dataclasses.is_dataclass(old):
            changes[name] = _fill(old, value, f"{where}: {name}")
        elif type(value) is not type(old):
            raise UserError(f"{where}: {name} has to be like {old!r}, not {value!r}")
        else:
            changes[name] = value
    return dataclasses.replace(default, **changes)
