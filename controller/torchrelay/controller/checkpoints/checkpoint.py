"""Just-in-time checkpoints on disk: a manifest, the journals of all ranks, and tensors that ranks wrote themselves."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchrelay.protocol.errors import CheckpointError
from torchrelay.protocol.machine.private import names_to_disk
from torchrelay.protocol.names import MANIFEST

VERSION = 3
_PAYLOADS = ("journal", "gate_journal", "set_up")


@dataclass(frozen=True)
class RankPart:
    """The way in which one rank gets back into its loop: `enter` or `shadow`, as in messages.Plan, with what that needs."""

    rank: int
    action: str
    journal: bytes
    gate_journal: bytes = b""
    set_up: bytes = b""
    ddp_layout: str = ""
    late: dict[str, int] = field(default_factory=dict)
    donor_collectives: int = -1


@dataclass(frozen=True)
class CheckpointOrigin:
    """The script that wrote a checkpoint with its arguments, a digest of its file, and the job in a cluster.

    `job`: as `protocol.kube.checkpoint_owner` has it. Empty: not known.
    """

    command: tuple[str, ...] = ()
    script_sha256: str = ""
    job: str = ""

    @property
    def program(self) -> tuple[str, ...]:
        """The script without arguments, and without the folder that it is in."""
        if self.command[:1] == ("-m",):
            return self.command[:2]
        return tuple(Path(script).name for script in self.command[:1])


@dataclass(frozen=True)
class JobCheckpoint:
    """A checkpoint of all ranks. `tensors`: rank -> bytes that it wrote in the folder.

    `tensors_of`: rank -> the rank whose tensors it takes.
    """

    run_id: str
    world_size: int
    target: int
    ranks: dict[int, RankPart]
    collective_log: bytes = b""
    tensors: dict[int, int] = field(default_factory=dict)
    tensors_of: dict[int, int] = field(default_factory=dict)
    left: str = ""
    """The boundary at which the ranks had left their loop, as in messages.Plan."""
    origin: CheckpointOrigin = CheckpointOrigin()


def write_checkpoint(folder: Path, checkpoint: JobCheckpoint) -> None:
    """Write a checkpoint's files but for the tensors. Raises OSError.

    The manifest comes last: without it the folder is no checkpoint.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, data in checkpoint_files(checkpoint).items():
        if name == MANIFEST:
            names_to_disk(folder)  # those of what it lists, the tensors' folders among them
        _write(folder / name, data)
    names_to_disk(folder)
    names_to_disk(folder.parent)


def checkpoint_files(checkpoint: JobCheckpoint) -> dict[str, bytes]:
    """Return a checkpoint's files by name, in the order in which they are to be written.

    The tensors are not among them: ranks write those themselves.
    """
    files: dict[str, bytes] = {}
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
            entry[name] = _add_payload(files, f"rank-{rank}.{name.replace('_', '-')}", getattr(part, name))
        ranks.append(entry)
    manifest = {
        "version": VERSION,
        "run_id": checkpoint.run_id,
        "world_size": checkpoint.world_size,
        "target": checkpoint.target,
        "ranks": ranks,
        "collective_log": _add_payload(files, "collective-log", checkpoint.collective_log),
        "tensors": {str(r): size for r, size in sorted(checkpoint.tensors.items())},
        "tensors_of": {str(r): saver for r, saver in sorted(checkpoint.tensors_of.items())},
        "left": checkpoint.left,
        "origin": {
            "command": list(checkpoint.origin.command),
            "script_sha256": checkpoint.origin.script_sha256,
            "job": checkpoint.origin.job,
        },
    }
    files[MANIFEST] = json.dumps(manifest, indent=1).encode()
    return files


def tensors_folder(directory: str, rank: int) -> str:
    """Return where the rank writes its tensors. Ranks whose tensors differ must not share a folder."""
    return str(Path(directory) / f"rank-{rank}-tensors")


def read_checkpoint(folder: Path, world_size: int) -> JobCheckpoint:
    """Read a checkpoint from its folder.

    Raises CheckpointError, saying what to do, for a folder that is no checkpoint, is not whole, or is of another job size.
    """
    return parse_checkpoint(f"--resume {folder}", lambda name: (folder / name).read_bytes(), world_size)


def parse_checkpoint(label: str, read: Callable[[str], bytes], world_size: int) -> JobCheckpoint:
    """Read a checkpoint from files that `read` gives by name, or raises OSError for. `label` begins what errors say.

    Raises CheckpointError, as `read_checkpoint`.
    """
    try:
        manifest = json.loads(read(MANIFEST))
    except FileNotFoundError as e:
        raise CheckpointError(
            f"{label}: there is no {MANIFEST} in it; give the folder that was named when the job ended"
        ) from e
    except (OSError, ValueError) as e:
        raise CheckpointError(f"{label}: {MANIFEST} cannot be read ({e}); start from an older checkpoint") from e
    if not isinstance(manifest, dict) or manifest.get("version") != VERSION:
        found = manifest.get("version") if isinstance(manifest, dict) else None
        raise CheckpointError(
            f"{label}: its format is {found}, this torchrelay reads {VERSION}; use the version that wrote it"
        )
    if manifest.get("world_size") != world_size:
        raise CheckpointError(
            f"{label}: saved by {manifest.get('world_size')} ranks, this job has {world_size}; "
            "resume with as many nodes and processes per node as before"
        )
    try:
        return _from_manifest(label, read, manifest)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise CheckpointError(
            f"{label}: {MANIFEST} is not as torchrelay writes it ({type(e).__name__}: {e}); "
            "start from an older checkpoint"
        ) from e


def _from_manifest(label: str, read: Callable[[str], bytes], manifest: Mapping[str, Any]) -> JobCheckpoint:
    ranks = {}
    for entry in manifest["ranks"]:
        payloads = {name: _read_payload(label, read, entry[name]) for name in _PAYLOADS}
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
        raise CheckpointError(f"{label}: ranks are missing in {MANIFEST}; start from an older checkpoint")
    return JobCheckpoint(
        manifest["run_id"],
        manifest["world_size"],
        manifest["target"],
        ranks,
        _read_payload(label, read, manifest["collective_log"]),
        {int(r): int(size) for r, size in manifest["tensors"].items()},
        {int(r): int(saver) for r, saver in manifest["tensors_of"].items()},
        str(manifest.get("left", "")),
        _origin(manifest.get("origin", {})),
    )


def _origin(entry: Mapping[str, Any]) -> CheckpointOrigin:
    command = tuple(map(str, entry.get("command", ())))
    return CheckpointOrigin(command, str(entry.get("script_sha256", "")), str(entry.get("job", "")))


def stranger(label: str, saved: CheckpointOrigin, now: CheckpointOrigin) -> str:
    """Return a warning about a checkpoint whose script is not quite this job's; empty if it is. Unknown origins pass.

    Raises CheckpointError for a checkpoint of another script: its variables would find their namesakes, and mean something else.
    """
    if not saved.command or not now.command:
        return ""
    if saved.program != now.program:
        raise CheckpointError(
            f"{label}: saved by {' '.join(saved.program)}, this job runs {' '.join(now.program)}; resume the script that saved it"
        )
    differ = []
    if saved.script_sha256 and now.script_sha256 and saved.script_sha256 != now.script_sha256:
        differ.append("the script's file has changed since it was saved")
    if (was := saved.command[len(saved.program) :]) != (is_now := now.command[len(now.program) :]):
        differ.append(f"its arguments were {' '.join(was) or 'none'}, now they are {' '.join(is_now) or 'none'}")
    return f"{label}: {', and '.join(differ)}; what ranks hold is as it was saved" if differ else ""


def _add_payload(files: dict[str, bytes], name: str, payload: bytes) -> dict[str, str] | None:
    if not payload:
        return None
    files[name] = payload
    return {"file": name, "sha256": hashlib.sha256(payload).hexdigest()}


def _read_payload(label: str, read: Callable[[str], bytes], entry: Mapping[str, str] | None) -> bytes:
    if entry is None:
        return b""
    name = entry["file"]
    if Path(name).name != name:
        raise CheckpointError(f"{label}: {name} points out of the folder; start from an older checkpoint")
    try:
        payload = read(name)
    except OSError as e:
        raise CheckpointError(f"{label}: {name} cannot be read ({e}); start from an older checkpoint") from e
    if hashlib.sha256(payload).hexdigest() != entry["sha256"]:
        raise CheckpointError(f"{label}: {name} is damaged; start from an older checkpoint")
    return payload


def _write(path: Path, data: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    partial.replace(path)
