"""Promises that were not kept: each is written down with what is needed to find the cause, in a folder of its own.

Journals hold what the script's variables hold, so that only their sizes and digests are written unless the user allows more.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.decide.protection.incident import Failure, is_incident
from torchrelay.controller.migration.events import Finished
from torchrelay.controller.migration.state import State
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.picture.rank_journal import RankJournal
from torchrelay.protocol.events import IncidentKept
from torchrelay.protocol.messages import Coverage

KEPT = 10
"""Incidents in one folder; the oldest one goes."""
RECORD = "incident.json"


class Incidents:
    """`promised()`: the report that stood when the migration began, and how many spares were ready then."""

    def __init__(
        self, config: ControllerConfig, job: Job, outbox: Outbox, promised: Callable[[], tuple[Coverage, int]]
    ) -> None:
        self._config = config
        self._job = job
        self._outbox = outbox
        self._promised = promised

    def migration_over(self, s: State, f: Finished, apart: bool) -> None:
        """To be called when its end has been told, and nothing has followed from it yet."""
        promised, spares = self._promised()
        job = self._job
        leavers = filter(None, s.lost.values())  # there is none where all ranks enter from a checkpoint
        uncovered = any(job.is_lost_with_node(w) and not job.node_with_journal(w) for w in leavers)
        lost = tuple(s.lost) or (s.rank,)
        joins_failed = any(not failure.by_chance for failure in job.join_failures)
        failure = Failure(s.kind, f.outcome, lost, joins_failed, spares, uncovered, apart)
        if not is_incident(promised, job.world_size, failure):
            return
        folder = ""
        if self._config.incident_dir:
            folder = str(Path(self._config.incident_dir).absolute() / f"{self._config.run_id}-{s.migration}")
            try:
                self._write(Path(folder), s, f, promised, spares)
            except OSError as e:
                self._outbox.log("warning", f"an incident could not be written to {folder}: {e}")
                folder = ""
        self._outbox.emit(IncidentKept(s.migration, folder, promised.level, promised.reason, f.reason))

    def _write(self, folder: Path, s: State, f: Finished, promised: Coverage, spares: int) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        journals: dict[str, Any] = {}
        for rank, journal in sorted(self._job.journals.items()):
            payloads = _payloads(journal)
            journals[str(rank)] = {name: _described(payload) for name, payload in payloads.items()}
            if self._config.incident_journals:
                for name, payload in payloads.items():
                    _write(folder / f"rank-{rank}.{name}", payload)
        trail = [{"time_s": e.time_s, "name": e.name, **json.loads(e.fields_json)} for e in self._outbox.recent]
        _write(folder / "events.jsonl", "".join(json.dumps(event) + "\n" for event in trail).encode())
        _write(folder / "report.json", _json(dataclasses.asdict(promised)))
        record = {
            "run_id": self._config.run_id,
            "migration": s.migration,
            "kind": s.kind,
            "ranks": sorted(s.lost),
            "began_because": s.reason,
            "outcome": f.outcome,
            "reason": f.reason,
            "promised": {"level": promised.level, "reason": promised.reason, "spares": spares},
            "joins_that_failed": [dataclasses.asdict(f) for f in self._job.join_failures],
            "versions": self._versions(),
            "journals": journals,
        }
        _write(folder / RECORD, _json(record))
        _keep_newest(folder.parent)

    def _versions(self) -> dict[str, str]:
        torch = {w.armed.torch_version for w in self._job.workers.values() if w.armed is not None}
        return {
            "torchrelay": metadata.version("torchrelay"),
            "torch": ", ".join(sorted(torch)),
            "python": platform.python_version(),
            "platform": platform.platform(),
        }


def _payloads(journal: RankJournal) -> Mapping[str, bytes]:
    named = {"set-up": journal.set_up}
    named |= {f"boundary-{number}": payload for number, payload in sorted(journal.boundaries.items())}
    named |= {f"gate-{number}": payload for number, payload in sorted(journal.gates.items())}
    return {name: payload for name, payload in named.items() if payload}


def _described(payload: bytes) -> dict[str, object]:
    return {"bytes": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"


def _write(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as f:
        f.write(data)


def _keep_newest(folder: Path) -> None:
    """Only what is whole, and therefore ours, is counted or goes."""
    records = sorted(folder.glob(f"*/{RECORD}"), key=lambda path: path.stat().st_mtime_ns)
    for record in records[:-KEPT]:
        shutil.rmtree(record.parent)
