"""Just-in-time checkpoints on disk: a manifest, the journals of all ranks, and tensors that ranks wrote themselves."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchrelay.protocol.errors import CheckpointError

MANIFEST = "manifest.json"
VERSION = 2
_PAYLOADS = ("journal", "gate_journal", "set_up")


@dataclass(frozen=True)
class RankPart:
    """How one rank gets back in: `enter` or `shadow`, as in messages.Plan, with what that needs."""

    rank: int
    action: str
    journal: bytes
    gate_journal: bytes = b""
    set_up: bytes = b""
    ddp_layout: str = ""
    late: dict[str, int] = field(default_factory=dict)
    donor_collectives: int = -1


@dataclass(frozen=True)
class JobCheckpoint:
    """`tensors`: rank -> bytes that it wrote in the folder; `tensors_of`: rank -> the rank whose tensors it takes."""

    run_id: str
    world_size: int
    target: int
    ranks: dict[int, RankPart]
    collective_log: bytes = b""
    tensors: dict[int, int] = field(default_factory=dict)
    tensors_of: dict[int, int] = field(default_factory=dict)


def write_checkpoint(folder: Path, checkpoint: JobCheckpoint) -> None:
    """The manifest comes last: without it the folder is no checkpoint. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    ranks = []
    for rank, part in sorted(checkpoint.ranks.items()):
        entry: dict[str, Any] = {
            "rank": rank,
            "action": part.action,
            "ddp_layout": part.ddp_layout,
            "late": part.late,
            "donor_collectives": part.donor_collectives,
        }
        for name in _PAYLOADS:
            entry[name] = _write_payload(folder, f"rank-{rank}.{name.replace('_', '-')}", getattr(part, name))
        ranks.append(entry)
    manifest = {
        "version": VERSION,
        "run_id": checkpoint.run_id,
        "world_size": checkpoint.world_size,
        "target": checkpoint.target,
        "ranks": ranks,
        "collective_log": _write_payload(folder, "collective-log", checkpoint.collective_log),
        "tensors": {str(r): size for r, size in sorted(checkpoint.tensors.items())},
        "tensors_of": {str(r): saver for r, saver in sorted(checkpoint.tensors_of.items())},
    }
    _write(folder / MANIFEST, json.dumps(manifest, indent=1).encode())


def read_checkpoint(folder: Path, world_size: int) -> JobCheckpoint:
    """Raises CheckpointError, saying what to do, for a folder that is none, is not whole, or is of another job size."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except FileNotFoundError as e:
        raise CheckpointError(
            f"--resume {folder}: there is no {MANIFEST} in it; give the folder that was named when the job ended"
        ) from e
    except (OSError, ValueError) as e:
        raise CheckpointError(
            f"--resume {folder}: {MANIFEST} cannot be read ({e}); start from an older checkpoint"
        ) from e
    if not isinstance(manifest, dict) or manifest.get("version") != VERSION:
        found = manifest.get("version") if isinstance(manifest, dict) else None
        raise CheckpointError(
            f"--resume {folder}: its format is {found}, this torchrelay reads {VERSION}; use the version that wrote it"
        )
    if manifest.get("world_size") != world_size:
        raise CheckpointError(
            f"--resume {folder}: saved by {manifest.get('world_size')} ranks, this job has {world_size}; "
            "resume with as many nodes and processes per node as before"
        )
    try:
        return _from_manifest(folder, manifest)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise CheckpointError(
            f"--resume {folder}: {MANIFEST} is not as torchrelay writes it ({type(e).__name__}: {e}); "
            "start from an older checkpoint"
        ) from e


def _from_manifest(folder: Path, manifest: Mapping[str, Any]) -> JobCheckpoint:
    ranks = {}
    for entry in manifest["ranks"]:
        payloads = {name: _read_payload(folder, entry[name]) for name in _PAYLOADS}
        rank = int(entry["rank"])
        late = {str(path): int(times) for path, times in entry["late"].items()}
        ranks[rank] = RankPart(
            rank,
            entry["action"],
            ddp_layout=entry["ddp_layout"],
            late=late,
            donor_collectives=int(entry["donor_collectives"]),
            **payloads,
        )
    if sorted(ranks) != list(range(manifest["world_size"])):
        raise CheckpointError(f"--resume {folder}: ranks are missing in {MANIFEST}; start from an older checkpoint")
    return JobCheckpoint(
        manifest["run_id"],
        manifest["world_size"],
        manifest["target"],
        ranks,
        _read_payload(folder, manifest["collective_log"]),
        {int(r): int(size) for r, size in manifest["tensors"].items()},
        {int(r): int(saver) for r, saver in manifest["tensors_of"].items()},
    )


def _write_payload(folder: Path, name: str, payload: bytes) -> dict[str, str] | None:
    if not payload:
        return None
    _write(folder / name, payload)
    return {"file": name, "sha256": hashlib.sha256(payload).hexdigest()}


def _read_payload(folder: Path, entry: Mapping[str, str] | None) -> bytes:
    if entry is None:
        return b""
    name = entry["file"]
    if Path(name).name != name:
        raise CheckpointError(f"--resume {folder}: {name} points out of the folder; start from an older checkpoint")
    try:
        payload = (folder / name).read_bytes()
    except OSError as e:
        raise CheckpointError(f"--resume {folder}: {name} cannot be read ({e}); start from an older checkpoint") from e
    if hashlib.sha256(payload).hexdigest() != entry["sha256"]:
        raise CheckpointError(f"--resume {folder}: {name} is damaged; start from an older checkpoint")
    return payload


def _write(path: Path, data: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    partial.replace(path)
