"""What an agent tells of the health of its devices."""

from __future__ import annotations

from dataclasses import field

from torchrelay.protocol.messages.message import message


@message(frozen=True)
class HealthSignal:
    """One piece of evidence (`health.kinds` has the kinds). `device`: a GPU's UUID, a port, or empty: the whole node.

    `worker`: where it is about one process. `age_s`: how long ago, when it was told.
    """

    kind: str
    device: str = ""
    worker: str = ""
    code: int = 0
    value: float = 1.0
    age_s: float = 0.0
    detail: str = ""


@message(frozen=True)
class HealthSignals:
    signals: tuple[HealthSignal, ...]


@message(frozen=True)
class HealthSources:
    """What this node's evidence comes from: source -> `ok`, `not present: why`, or `dead: why`.

    `devices`: worker -> the devices that it uses, separated by blanks: the UUID of its GPU, its network ports. `free`: GPUs of the
    job that no process of it has used. `gpus`: worker -> the UUID of its GPU, where it has one.
    """

    sources: dict[str, str] = field(default_factory=dict)
    devices: dict[str, str] = field(default_factory=dict)
    free: tuple[str, ...] = ()
    gpus: dict[str, str] = field(default_factory=dict)
