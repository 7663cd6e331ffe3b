"""What a user asks for with the annotations of a pod: read and judged in one place, for the webhook and the controller."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchrelay.protocol.errors import UserError
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.names import RESPAWN_LIMIT_DEFAULT
from torchrelay.protocol.security import transfer_protection

MAX_SPARES = 1024
MOST_DIGITS = 12
"""Of a number; Python refuses to read a very long one, and no clock counts so far."""
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SWITCH = {"true": True, "false": False}
_SET_BY_US = {kube.INJECTED, kube.OWNER, kube.NOT_INJECTED, kube.NOTES, kube.JOB, kube.ROLE}


@dataclass(frozen=True)
class PodAnnotations:
    """What a pod's annotations ask for.

    `spares`: how many of the job's own, None where `pool` names a SparePool. `fallback`: the rungs that may be tried, in
    order; empty for none. `buddy_every`: steps between copies of shards on another node, None for torchrelay's choice,
    0 for never; `buddy_sync`: no step begins before the copies of all ranks are whole.
    `container`: the training container's name, "" where it is to be found.
    """

    inject: bool = False
    spares: int | None = 1
    pool: str = ""
    policy: str = kube.POLICY_AUTO
    fallback: tuple[str, ...] = kube.FALLBACKS
    checkpoint_dir: str = ""
    buddy_every: int | None = None
    container: str = ""
    spare_wait_s: float = 300.0
    """How long a lost rank waits for a spare that is being made, before less will do."""
    buddy_sync: bool = False
    protection: str = transfer_protection.INTEGRITY
    """Of tensors that go to another pod."""
    respawn_limit: int = RESPAWN_LIMIT_DEFAULT
    """How often within an hour a process takes over its own rank that its pod has started again, where no spare does; 0: never."""
    rehearse_every_s: float = 0.0
    """How often a spare pod tries whether it would hold what a rank holds; 0: never."""
    hang_timeout_s: float = 0.0
    """How long the others wait for a rank that hangs and cannot be replaced; 0: as long as their process group would."""

    @property
    def copies_every(self) -> int:
        """Return the steps between copies; 0 if none are made. If lost ranks are not replaced, nobody would use copies."""
        return (self.buddy_every or 0) if self.policy == kube.POLICY_AUTO else 0


def read(annotations: Mapping[str, Any] | None) -> PodAnnotations:
    """Read the annotations. Raises UserError with one sentence for each annotation that makes no sense."""
    readers: dict[str, Callable[[str], dict[str, Any]]] = {
        kube.INJECT: lambda v: {"inject": _switch(v)},
        kube.SPARES: _spares,
        kube.POLICY: lambda v: {"policy": _one_of(v, kube.POLICIES)},
        kube.FALLBACK: lambda v: {"fallback": _fallback(v)},
        kube.CHECKPOINT_DIR: lambda v: {"checkpoint_dir": _folder(v)},
        kube.BUDDY_EVERY: lambda v: {"buddy_every": _count(v, "a number of steps, or 0 for never")},
        kube.BUDDY_SYNC: lambda v: {"buddy_sync": _switch(v)},
        kube.TRANSFER_ENCRYPTION: lambda v: {"protection": _one_of(v, transfer_protection.CHOICES)},
        kube.SPARE_WAIT: lambda v: {"spare_wait_s": float(_count(v, "a number of seconds"))},
        kube.RESPAWN_LIMIT: lambda v: {"respawn_limit": _count(v, "how often within an hour, or 0 for never")},
        kube.REHEARSE_EVERY: lambda v: {"rehearse_every_s": float(_count(v, "a number of seconds, or 0 for never"))},
        kube.HANG_TIMEOUT: lambda v: {
            "hang_timeout_s": float(_count(v, "seconds, or 0 for the process group's timeout"))
        },
        kube.CONTAINER: lambda v: {"container": _name(v, "the name of a container of the pod")},
    }
    wishes: dict[str, Any] = {}
    wrong = []
    for name, reader in readers.items():
        if (value := (annotations or {}).get(name)) is not None:
            try:
                if not isinstance(value, str):
                    raise UserError(f"has to be text (in YAML: in quotes), not {value!r}")
                wishes |= reader(value)
            except UserError as e:
                wrong.append(f"{name} {e}")
    if wishes.get("buddy_sync") and not wishes.get("buddy_every") and not wrong:
        wrong.append(f"{kube.BUDDY_SYNC}: nothing is copied; set {kube.BUDDY_EVERY} to the steps between two copies")
    if wrong:
        raise UserError("; ".join(wrong))
    return PodAnnotations(**wishes)


def unknown(annotations: Mapping[str, Any] | None) -> list[str]:
    """Return annotations in torchrelay's group that mean nothing: most likely typing errors."""
    known = {*kube.USER_ANNOTATIONS, *_SET_BY_US}
    return sorted(name for name in annotations or {} if name.startswith(f"{kube.GROUP}/") and name not in known)


def _switch(value: str) -> bool:
    if value not in _SWITCH:
        raise UserError(f'has to be "true" or "false", not "{value}"')
    return _SWITCH[value]


def _spares(value: str) -> dict[str, Any]:
    if value.lstrip("+-").isdecimal():
        number = _count(value, "a number of spares, or the name of a SparePool")
        if number > MAX_SPARES:
            raise UserError(f"cannot be more than {MAX_SPARES}, and is {number}")
        return {"spares": number}
    return {"spares": None, "pool": _name(value, "a number of spares, or the name of a SparePool")}


def _one_of(value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise UserError(f'has to be one of {", ".join(known)}, not "{value}"')
    return value


def _fallback(value: str) -> tuple[str, ...]:
    rungs = tuple(part.strip() for part in value.split(",")) if value.strip() else ()
    for rung in rungs:
        _one_of(rung, kube.FALLBACKS)
    if list(rungs) != [rung for rung in kube.FALLBACKS if rung in rungs]:
        raise UserError(f'names each rung once, in the order {",".join(kube.FALLBACKS)}, and is "{value}"')
    return rungs


def _folder(value: str) -> str:
    if not value.startswith("/") or ".." in value.split("/") or "\0" in value:
        raise UserError(f'has to be an absolute path without "..", not "{value}"')
    return value.rstrip("/") or "/"


def _count(value: str, meaning: str) -> int:
    if not (value.isascii() and value.isdecimal()):
        raise UserError(f'has to be {meaning}, not "{value}"')
    if len(value) > MOST_DIGITS:
        raise UserError(f"has to be {meaning}, of {MOST_DIGITS} digits at most, and has {len(value)}")
    return int(value)


def _name(value: str, meaning: str) -> str:
    if not _DNS_LABEL.fullmatch(value):
        raise UserError(f'has to be {meaning}, not "{value}"')
    return value
