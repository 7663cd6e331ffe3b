"""Which machines a job has, on disk: for a command that comes back, and to see whether machines share the folder."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torchrelay.cli.folders.shared_folder import remove_if_empty
from torchrelay.protocol.names import machines_file, mark_file

NO_MARK = "none"


@dataclass(frozen=True)
class KnownMachines:
    """The machines of one job: where its controllers may listen, HOST:PORT. `by`: the agent of the machine that wrote it down."""

    job: str
    by: str
    addresses: tuple[str, ...]


def read_machines(folder: Path, run_id: str) -> KnownMachines | None:
    """Read the machines; None if there is no readable file."""
    try:
        data = json.loads((folder / machines_file(run_id)).read_bytes())
        return KnownMachines(str(data["job"]), str(data["by"]), tuple(map(str, data["addresses"])))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_machines(folder: Path, run_id: str, known: KnownMachines) -> None:
    """Write the machines down. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / machines_file(run_id)
    partial = path.with_name(f"{path.name}.{known.by}")
    partial.write_text(json.dumps({"job": known.job, "by": known.by, "addresses": list(known.addresses)}))
    partial.replace(path)


def run_id_of(secret: bytes) -> str:
    """Return the id of a run on several machines. All of them know it, since they share the secret."""
    return hashlib.sha256(b"run " + secret).hexdigest()[:8]


def secret_of_checks(secret: bytes) -> bytes:
    """Return the secret of the meeting of a job's checks: neither takes a machine of the other for one of its own."""
    return hashlib.sha256(b"checks " + secret).hexdigest().encode()


def read_mark(folder: Path, run_id: str) -> str:
    """Return the mark that the run's first machine has written there; NO_MARK if there is none."""
    try:
        return (folder / mark_file(run_id)).read_text(encoding="ascii")
    except (OSError, ValueError):
        return NO_MARK


def mark(folder: Path, run_id: str) -> str:
    """Return the mark of the run's first machine there. If there is none, write this machine's. Empty if that is impossible."""
    path = folder / mark_file(run_id)
    own = secrets.token_hex(8)
    whole = path.with_name(f"{path.name}.{own}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        whole.write_text(own, encoding="ascii")
        try:
            os.link(whole, path)  # done by one machine alone, also on NFS
        except FileExistsError:
            return path.read_text(encoding="ascii")
        finally:
            whole.unlink(missing_ok=True)
    except (OSError, ValueError):
        return ""
    return own


def remove_machines(folder: Path, run_id: str, jobs: Sequence[str]) -> None:
    """Remove the file, and what controllers have written about their order. What cannot be removed stays."""
    for job in jobs:
        for path in folder.glob(f"{run_id}-{job}-after-*"):
            path.unlink(missing_ok=True)
    known = read_machines(folder, run_id)
    if known is not None and known.job in jobs:
        (folder / machines_file(run_id)).unlink(missing_ok=True)
    (folder / mark_file(run_id)).unlink(missing_ok=True)
    remove_if_empty(folder)
