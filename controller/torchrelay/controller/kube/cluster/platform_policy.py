"""The policy of a cluster's operators: defaults and limits by namespace, and for all. It is read once, at the start."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from torchrelay.protocol.errors import UserError
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.annotations import MAX_SPARES, PodAnnotations

ALL = "*"
"""The row for namespaces without one of their own. No namespace has such a name."""
_CAREFUL = (kube.POLICY_AUTO, kube.POLICY_PLANNED_ONLY, kube.POLICY_OBSERVE)
"""The further right, the less is done."""


@dataclass(frozen=True)
class NamespaceLimits:
    """The limits of one namespace. `spares`: of a job that does not say. `most_spares`: spare pods of all jobs of the namespace.

    `mode`: as the annotation `policy`; a job may ask for less than that, and not for more.
    """

    spares: int = 1
    most_spares_per_job: int = MAX_SPARES
    most_spares: int | None = None
    mode: str = kube.POLICY_AUTO


class Bounded(NamedTuple):
    """The wishes that a job gets, and in words what it does not get; empty where it gets all."""

    options: PodAnnotations
    reason: str


class Allowed(NamedTuple):
    """How many pods may be made now, and why not more; empty where all may."""

    pods: int
    reason: str


@dataclass(frozen=True)
class PlatformPolicy:
    """The policy. `most_spares`: spare pods in the cluster.

    `untouched`: labels of nodes. What the cluster says of a node with one of them moves no rank.
    `most_quarantined_nodes`: at once, in the cluster; evidence of a fault bars no more than these.
    """

    namespaces: Mapping[str, NamespaceLimits] = field(default_factory=dict)
    most_spares: int | None = None
    untouched: tuple[tuple[str, str], ...] = ()
    most_quarantined_nodes: int | None = None

    def of(self, namespace: str) -> NamespaceLimits:
        return self.namespaces.get(namespace) or self.namespaces.get(ALL) or NamespaceLimits()

    def bounded(self, namespace: str, annotations: Mapping[str, str], options: PodAnnotations) -> Bounded:
        """Return what a job of the namespace gets of what its annotations ask for. Pure."""
        limits = self.of(namespace)
        reasons = []
        if kube.SPARES not in annotations:
            options = dataclasses.replace(options, spares=limits.spares)
        if (asked := options.spares) is not None and asked > limits.most_spares_per_job:
            options = dataclasses.replace(options, spares=limits.most_spares_per_job)
            reasons.append(
                f"it asks for {asked} spares, and jobs of namespace {namespace} may have {limits.most_spares_per_job}"
            )
        if _CAREFUL.index(options.policy) < _CAREFUL.index(limits.mode):
            reasons.append(f"it asks for {options.policy}, and namespace {namespace} allows {limits.mode}")
            options = dataclasses.replace(options, policy=limits.mode)
        return Bounded(options, "; ".join(reasons))

    def has_budget(self, namespace: str) -> bool:
        """Return whether spares have to be counted before one more is made."""
        return self.most_spares is not None or self.of(namespace).most_spares is not None

    def allowed(self, namespace: str, asked: int, in_namespace: int, in_cluster: int) -> Allowed:
        """Say how many of the spare pods that a job asks for may be made, with so many there of all jobs. Pure."""
        budgets = [
            (self.of(namespace).most_spares, in_namespace, f"namespace {namespace}"),
            (self.most_spares, in_cluster, "the cluster"),
        ]
        count = asked
        reason = ""
        for most, there, where in budgets:
            if most is not None and max(0, most - there) < count:
                count = max(0, most - there)
                reason = f"{asked} spares are missing, and {where} has {there} of the {most} that it may have"
        return Allowed(count, reason)

    def why_not_quarantined(self, node: str, quarantined: Collection[str]) -> str:
        """Say why a node may not be put into quarantine beside those that are; empty if it may. Pure."""
        most = self.most_quarantined_nodes
        if most is None or node in quarantined or len(quarantined) < most:
            return ""
        return f"nodes in quarantine: {len(quarantined)}, of at most {most} at once (mostQuarantinedNodes); look at them first"

    def is_untouched(self, labels: Mapping[str, str]) -> bool:
        return any(labels.get(key) == value for key, value in self.untouched)


def read_platform_policy(path: str) -> PlatformPolicy:
    """Return the policy in the file, or one without limits for an empty path. Raises UserError, which says what to change."""
    if not path:
        return PlatformPolicy()
    try:
        values = yaml.safe_load(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        raise UserError(f"the platform policy {path} cannot be read: {e}") from e
    return parse_platform_policy(path, values or {})


def parse_platform_policy(where: str, values: Any) -> PlatformPolicy:
    """Read the policy from a table. Raises UserError for anything that cannot be meant."""
    top = _table(where, values, {"namespaces", "mostSpares", "neverTouchNodes", "mostQuarantinedNodes"})
    namespaces = _table(f"{where}: namespaces", top.get("namespaces") or {}, None)
    labels = _table(f"{where}: neverTouchNodes", top.get("neverTouchNodes") or {}, None)
    if wrong := [key for key, value in labels.items() if not isinstance(value, str)]:
        raise UserError(f"{where}: neverTouchNodes: {wrong[0]} is no text; put the label's value into quotes")
    return PlatformPolicy(
        {str(name): _limits(f"{where}: namespaces: {name}", row) for name, row in namespaces.items()},
        _count_if_there(where, "mostSpares", top),
        tuple(sorted((str(key), value) for key, value in labels.items())),
        _count_if_there(where, "mostQuarantinedNodes", top),
    )


def _limits(where: str, row: Any) -> NamespaceLimits:
    readers: dict[str, tuple[str, Callable[[str, str, Any], Any]]] = {
        "spares": ("spares", _count),
        "mostSparesPerJob": ("most_spares_per_job", _count),
        "mostSpares": ("most_spares", _count),
        "mode": ("mode", _mode),
    }
    table = _table(where, row, set(readers))
    limits = NamespaceLimits(**{readers[k][0]: readers[k][1](where, k, v) for k, v in table.items()})
    if limits.spares > limits.most_spares_per_job:
        raise UserError(
            f"{where}: spares is {limits.spares}, more than mostSparesPerJob ({limits.most_spares_per_job})"
        )
    return limits


def _table(where: str, values: Any, known: set[str] | None) -> dict[Any, Any]:
    if not isinstance(values, dict):
        raise UserError(f"{where}: is no table" + (f"; give {', '.join(sorted(known))}" if known else ""))
    if known is not None and (unknown := [str(key) for key in values if key not in known]):
        raise UserError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}")
    return values


def _count_if_there(where: str, key: str, table: dict[Any, Any]) -> int | None:
    return _count(where, key, table[key]) if key in table else None


def _count(where: str, key: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_SPARES:
        raise UserError(f"{where}: {key} is {value!r}; give a whole number from 0 to {MAX_SPARES}")
    return value


def _mode(where: str, key: str, value: Any) -> str:
    if value not in _CAREFUL:
        raise UserError(f"{where}: {key} is {value!r}; give one of {', '.join(_CAREFUL)}")
    return str(value)
