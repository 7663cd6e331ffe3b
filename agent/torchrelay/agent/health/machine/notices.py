"""Is this machine about to go? By what systemd has scheduled, and by files that whoever runs the machine writes.

Leans on /run/systemd/shutdown/scheduled, as systemd-logind has written it since version 209: USEC (of the Unix clock) and MODE.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from torchrelay.protocol.health.node_facts import NodeEvidence, NodeFacts, Notice
from torchrelay.protocol.messages import HealthSignal

SCHEDULED = "run/systemd/shutdown/scheduled"
LEAD_S = 600.0
"""A shutdown that is further away is not acted on yet."""
MOST_BYTES = 4096


class Notices:
    """`files`: each is a notice while it is there; its first line says why. `root`: where run is."""

    def __init__(self, files: Sequence[str], root: Path = Path("/"), wall: Callable[[], float] = time.time) -> None:
        self._files = [Path(f) for f in files]
        self._scheduled = root / SCHEDULED
        self._wall = wall
        self._evidence = NodeEvidence()

    def poll(self) -> list[HealthSignal]:
        return list(self._evidence.update(NodeFacts(notices=(*self._shutdown(), *self._notices()))))

    def _shutdown(self) -> list[Notice]:
        text = _read(self._scheduled)
        if text is None:
            return []
        values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        mode = values.get("MODE", "")
        at_us = values.get("USEC", "")
        if mode.startswith("dry-") or not at_us.isdigit() or int(at_us) / 1e6 - self._wall() > LEAD_S:
            return []
        at = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(int(at_us) / 1e6))
        why = values.get("WALL_MESSAGE", "")
        return [Notice("shutdown", f"{mode or 'shutdown'} at {at}" + (f": {why}" if why else ""))]

    def _notices(self) -> list[Notice]:
        found = {path: text for path in self._files if (text := _read(path)) is not None}
        texts = [next(iter(text.strip().splitlines()), "") or str(path) for path, text in found.items()]
        return [Notice("notice", "; ".join(texts))] if found else []


def _read(path: Path) -> str | None:
    """None while it is not there."""
    try:
        with open(path, "rb") as f:
            return f.read(MOST_BYTES).decode("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        return f"{path} is there and cannot be read: {e.strerror}"
