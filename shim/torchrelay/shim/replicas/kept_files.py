"""Write and remove files in the folder of checkpoints: the training process can, its agent and the controller cannot."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from torchrelay.protocol.errors import CheckpointError
from torchrelay.protocol.kube.checkpoint_owner import folder_prefix, is_of_name, saved_by
from torchrelay.protocol.logs.log_lines import LogLines
from torchrelay.protocol.machine.private import make_private, names_to_disk
from torchrelay.protocol.messages import AsideSet, ClearCheckpoints, SetAside
from torchrelay.protocol.names import JIT_PREFIX, MANIFEST
from torchrelay.shim.agent_link.link import AgentLink

BROKEN = ".torchrelay-aside"
"""The ending of the name of a checkpoint that must not be used: no script looks for such a name."""


def keep(folder: Path, name: str, data: bytes, whole: bool) -> None:
    """Append one piece to a file. Pieces come in order. The file gets its name, durably, with the piece that makes it `whole`.

    Raises OSError, CheckpointError.
    """
    if Path(name).name != name:
        raise CheckpointError(f"{name} points out of {folder}")
    make_private(folder)
    partial = folder / f".{name}.{os.getpid()}.partial"
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "wb") as f:
        f.write(data)
        f.flush()
        if whole:
            os.fsync(f.fileno())
    if whole:
        if name == MANIFEST:
            names_to_disk(folder)  # those of what it lists
        partial.replace(folder / name)
        names_to_disk(folder)


def set_aside(paths: Sequence[str]) -> str:
    """Rename each checkpoint so that it is not used. Return which could not be renamed, or empty.

    One that is gone already is no failure.
    """
    failed = []
    for path in paths:
        try:
            os.rename(path, path.rstrip("/") + BROKEN)
        except FileNotFoundError:
            continue
        except OSError as e:
            failed.append(f"{path}: {e.strerror}")
    return "; ".join(failed)


def carry_out(order: SetAside | ClearCheckpoints, link: AgentLink, log: LogLines) -> None:
    """Carry out the controller's order to set checkpoints aside or to remove them.

    Checkpoints are removed beside training. But where none may be left, they are removed at once: what comes next, such as the end,
    waits for it.
    """
    if isinstance(order, SetAside):
        link.send(AsideSet(set_aside(order.paths)))
        return

    def work() -> None:
        if failed := clear(order):
            log.say(f"just-in-time checkpoints could not be removed: {failed}")

    if order.keep:
        threading.Thread(target=work, name="torchrelay-clear", daemon=True).start()
    else:
        work()


def clear(order: ClearCheckpoints) -> str:
    """Remove the just-in-time checkpoints that the order means. Return what could not be removed, or empty.

    What an earlier job of the name has left is of no use to this one. A job of another namespace may have the same folder, and
    write to it now: what nothing says to be of this name and namespace stays. So does what this very run has begun, unless
    nothing may be left: it may be writing it. The manifest goes first: what is left half removed is no whole one.
    """
    folder = Path(order.folder)
    marked = folder_prefix(order.job_id)
    name = re.compile(rf"({re.escape(marked)}|{re.escape(JIT_PREFIX)}){re.escape(order.job)}-[0-9a-f]+-step\d+")
    try:
        called = [path for path in folder.iterdir() if name.fullmatch(path.name) and path.is_dir()]
    except OSError as e:
        return f"{folder}: {e.strerror}"
    savers = {path: _saver(path) for path in called}
    whole = {
        path: written_s
        for path in called
        if savers[path] == order.job_id and (written_s := _written_s(path)) is not None
    }
    kept = sorted(whole, key=lambda path: whole[path])[len(whole) - order.keep :] if order.keep else []
    failed = []
    for path in called:
        saver = savers[path]
        is_ours = is_of_name(saver, order.job_id) if saver else path.name.startswith(marked)
        may_be_written = not saver and order.keep and path.name.startswith(f"{marked}{order.run_id}-step")
        if not is_ours or path in kept or may_be_written:
            continue
        try:
            (path / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(path)
        except OSError as e:
            failed.append(f"{path}: {e.strerror}")
    return "; ".join(failed)


def _saver(checkpoint: Path) -> str:
    """Return the job that has saved the checkpoint, or empty where nothing says so."""
    try:
        return saved_by(json.loads((checkpoint / MANIFEST).read_bytes()))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return ""


def _written_s(checkpoint: Path) -> float | None:
    """Return when the checkpoint became whole, or None."""
    try:
        return (checkpoint / MANIFEST).stat().st_mtime
    except OSError:
        return None
