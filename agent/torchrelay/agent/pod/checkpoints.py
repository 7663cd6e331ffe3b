"""The checkpoints in a job's folder: our own just-in-time ones, and those that the script has written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from torchrelay.agent.health.job_files.checkpoints import broken_in, is_checkpoint_file, why_broken
from torchrelay.protocol.kube.checkpoint_owner import folder_prefix, saved_by
from torchrelay.protocol.messages import CheckpointFile, CheckpointsFound, FoundCheckpoint
from torchrelay.protocol.names import JIT_PREFIX, MANIFEST, MAX_MESSAGE_BYTES

MOST_CHECKPOINTS = 256
_STEP = re.compile(r"(?:global_step|iteration|iter|step|checkpoint|ckpt)s?[-_=]?0*(\d+)", re.IGNORECASE)
_NUMBER = re.compile(r"0*(\d+)")
_SHARD = re.compile(
    r"^(model-\d+-of-\d+|pytorch_model|model|optimizer|scheduler|rng_state\w*|training_args|adapter_model)"
)
"""Names of files that are parts of one checkpoint, which is their folder."""


def checkpoint_files(folder: Path) -> Iterator[CheckpointFile]:
    """Yield the folder's files but for tensors, which ranks read themselves. The last message has `last`, and no file."""
    try:
        names = sorted(f.name for f in folder.iterdir() if f.is_file() and not f.name.startswith("."))
    except OSError as e:
        names = []
        reason = f"{folder} cannot be read: {e.strerror}"
    else:
        reason = ""
    for name in names:
        try:
            data = (folder / name).read_bytes()
        except OSError as e:
            reason = f"{folder / name} cannot be read: {e.strerror}"
            continue
        if len(data) > MAX_MESSAGE_BYTES // 2:
            reason = f"{folder / name} is too large"
            continue
        yield CheckpointFile(str(folder), name, data)
    yield CheckpointFile(str(folder), "", reason=reason, last=True)


def find_checkpoints(folder: Path, job: str) -> CheckpointsFound:
    """Return the script's own checkpoints and those that `job` has saved just in time, the newest first, whole or not.

    A job that came before under the same name, or has the same folder, may have run another script: its just-in-time checkpoints
    are counted only.
    """
    try:
        found = [_judge(path) for path in _candidates(folder)]
        saved = [_judge_saved(path, job) for path in folder.glob(f"{JIT_PREFIX}*") if path.is_dir()]
    except OSError as e:
        return CheckpointsFound(reason=f"{folder} cannot be read: {e.strerror}")
    found += [ours for ours in saved if ours is not None]
    found.sort(key=lambda f: -f.step)
    return CheckpointsFound(tuple(found[:MOST_CHECKPOINTS]), of_others=saved.count(None))


def _candidates(folder: Path) -> set[Path]:
    """Return the paths of checkpoints: each is a single file, or a folder whose files are one checkpoint."""
    found = set()
    for path in folder.rglob("*"):
        below = path.relative_to(folder).parts
        if not is_checkpoint_file(path) or any(p.startswith((JIT_PREFIX, ".")) for p in below):
            continue
        is_part = path.suffix in (".distcp", ".safetensors") or _SHARD.match(path.name)
        found.add(path.parent if is_part and path.parent != folder else path)
    # A folder that holds parts is one checkpoint, with whatever else is in it.
    return {path for path in found if not any(parent in found for parent in path.parents)}


def _judge(path: Path) -> FoundCheckpoint:
    step = step_of(path)
    broken = "; ".join(broken_in(path)) if path.is_dir() else why_broken(path)
    if not broken and step < 0:
        broken = "its step is not known: its name has no number"
    return FoundCheckpoint(str(path), step, broken)


def _judge_saved(path: Path, job: str) -> FoundCheckpoint | None:
    """Judge a just-in-time checkpoint by its manifest, which was written last. The rest is checked when it is read.

    Return None for one of another job, or if neither a manifest nor the folder's name says that it is of this job.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        if saved_by(manifest) != job:
            return None
        return FoundCheckpoint(str(path), int(manifest["target"]), "", ours=True)
    except FileNotFoundError:
        if not path.name.startswith(folder_prefix(job)):
            return None
        return FoundCheckpoint(str(path), -1, "it was not finished", ours=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        return FoundCheckpoint(str(path), -1, f"{MANIFEST} cannot be read: {e}", ours=True)


def step_of(path: Path) -> int:
    """Return the step that the trainer's own record says, or the name; -1 if neither does."""
    state = path / "trainer_state.json"
    if path.is_dir() and state.is_file():
        try:
            return int(json.loads(state.read_bytes())["global_step"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return -1
    name = path.name if path.is_dir() else path.stem
    named = _STEP.findall(name) or _NUMBER.findall(name)
    return int(named[-1]) if named else -1
