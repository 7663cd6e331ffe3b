"""The quarantines that people have made as resources: of nodes, or of single devices, for a time or for good."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from torchrelay.protocol.health.node_facts import Notice
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.changed_by import changed_by

log = logging.getLogger(__name__)

DELETED = "its Quarantine was deleted"
TIME_OVER = "its time is over"


@dataclass(frozen=True)
class Quarantined:
    """A quarantine. `device`: empty for the whole node.

    `until_s`: seconds since the epoch; None: until the resource is deleted.
    `cleared`: who has cleared it, and why; it does not hold any more then. Empty: it was not cleared.
    """

    node: str
    device: str
    reason: str
    until_s: float | None = None
    cleared: str = ""

    def holds(self, now_s: float) -> bool:
        return not self.cleared and (self.until_s is None or now_s < self.until_s)

    @property
    def what(self) -> str:
        """The name of a notice of it."""
        return "device-quarantine" if self.device else "quarantine"


def read_quarantine(manifest: dict[str, Any]) -> Quarantined:
    """Read a resource that the API server has let in. A time that cannot be read counts as none, and is logged."""
    name = manifest["metadata"]["name"]
    spec = manifest["spec"]
    until_s = None
    if until := spec.get("until"):
        try:
            until_s = datetime.fromisoformat(until.replace("Z", "+00:00")).timestamp()
        except ValueError:
            log.error("Quarantine %s: until %r is no time as in RFC 3339; it holds until it is deleted", name, until)
    reason = spec.get("reason") or f"Quarantine {name}"
    if by := (manifest["metadata"].get("annotations") or {}).get(kube.REQUESTED_BY, ""):
        reason = f"{reason}; asked for by {by}"
    return Quarantined(spec.get("node", ""), spec.get("device") or "", reason, until_s, _cleared(manifest))


def _cleared(manifest: dict[str, Any]) -> str:
    if not (why := manifest["spec"].get("cleared")):
        return ""
    by = changed_by(manifest)
    return f"cleared by {by}: {why}" if by else f"cleared: {why}"


class Quarantines:
    """All quarantines, by the names of their resources. Times are seconds since the epoch."""

    def __init__(self) -> None:
        self._found: dict[str, Quarantined] = {}
        self._ended: dict[str, dict[str, str]] = {}
        """Node -> the subject of a notice that has ended -> how it ended."""

    def put(self, name: str, quarantined: Quarantined, now_s: float) -> set[str]:
        """Take in a quarantine. Return the nodes for which something has changed."""
        concerned = self.remove(name, quarantined.cleared or TIME_OVER)
        if quarantined.node and quarantined.holds(now_s):
            self._found[name] = quarantined
            concerned.add(quarantined.node)
        return concerned

    def remove(self, name: str, how: str = DELETED) -> set[str]:
        """End a quarantine. Return the nodes for which something has changed."""
        before = self._found.pop(name, None)
        if before is None:
            return set()
        self._ended.setdefault(before.node, {})[before.device or before.what] = how
        return {before.node}

    def drop_over(self, now_s: float) -> set[str]:
        """Drop the quarantines whose time is over. Return their nodes."""
        over = [name for name, quarantined in self._found.items() if not quarantined.holds(now_s)]
        return {node for name in over for node in self.remove(name, TIME_OVER)}

    def notices(self, node: str) -> tuple[Notice, ...]:
        """Return one notice for the node as a whole, and one for each device of it that is in quarantine."""
        reasons: dict[str, list[str]] = {}
        for quarantined in self._found.values():
            if quarantined.node == node:
                reasons.setdefault(quarantined.device, []).append(quarantined.reason)
        return tuple(
            Notice(Quarantined(node, device, "").what, "; ".join(texts), device)
            for device, texts in sorted(reasons.items())
        )

    def ended(self, node: str) -> dict[str, str]:
        """Return how notices of the node came to their end, by what they were about."""
        return dict(self._ended.get(node, {}))

    def forget(self, node: str) -> None:
        """Drop what is kept of a node that is no more."""
        self._ended.pop(node, None)

    def all(self) -> dict[str, Quarantined]:
        """Return the quarantines that hold, by the names of their resources."""
        return dict(self._found)

    def barred_nodes(self) -> list[str]:
        """Return the nodes that are in quarantine as a whole."""
        return sorted({quarantined.node for quarantined in self._found.values() if not quarantined.device})
