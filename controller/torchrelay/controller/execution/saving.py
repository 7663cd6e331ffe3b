"""A checkpoint's files besides the tensors: written here, or by a survivor where only pods reach the folder.

Just-in-time checkpoints, and those that were asked for.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

from torchrelay.controller.checkpoints.checkpoint import (
    CheckpointOrigin,
    JobCheckpoint,
    checkpoint_files,
    write_checkpoint,
)
from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.decide.migration.stand import Cannot
from torchrelay.controller.decide.restart.folders import choose_folder
from torchrelay.controller.execution.targets import saved_job
from torchrelay.controller.migration import events as m
from torchrelay.controller.migration.state import State
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.protocol.events import CheckpointSaved
from torchrelay.protocol.messages import ClearCheckpoints, KeepFile, OrderFailed
from torchrelay.protocol.names import ASKED_FOR, MANIFEST
from torchrelay.protocol.words.phases import SAVE, UNPLANNED

PIECE_BYTES = 8 << 20
"""The most of a file in one order. A frame to a shim must not be larger than `names.MAX_FRAME_BYTES`, as text."""
Answer = m.CheckpointWritten | m.CheckpointFailed | m.FolderChosen


class Saving:
    def __init__(self, config: ControllerConfig, job: Job, outbox: Outbox) -> None:
        self._config = config
        self._job = job
        self._outbox = outbox
        self._sizes: dict[int, int] = {}
        self._checkpoint: JobCheckpoint | None = None
        self._directory = ""
        self._writer = ""
        self._begun: list[Path] = []
        """Folders that this migration writes, where they can be reached from here."""
        self._refused: dict[str, str] = {}
        """Why nothing could be written below each folder in this migration."""
        self.resume_commands: Callable[[str], dict[str, str]] = lambda directory: {}
        """Returns, for each machine, the command that goes on from a checkpoint in that folder there, where there are several."""

    def clear(self, keep: int) -> None:
        """Remove old checkpoints where folders are the job's own, and nothing else removes them."""
        c = self._config
        job = self._job
        if not (c.adopted and c.jit_prefix and c.jit_dir) or c.jit_barred or 0 not in job.holders:
            return
        name = c.run_id.rpartition("-")[0]
        folder = str(Path(c.jit_dir).absolute())
        self._outbox.to_worker(job.holders[0], ClearCheckpoints(folder, name, keep, c.job_id, c.run_id))

    def begin(self) -> None:
        """Begin another migration: nothing is saved yet."""
        self._sizes.clear()
        self._refused.clear()
        self._checkpoint = None
        self._writer = ""
        self._begun.clear()

    @property
    def barred(self) -> str:
        """Why nothing is saved in this job at all; empty if something may be."""
        return self._config.jit_barred

    def over(self) -> None:
        """Remove what the migration, which has ended, has not finished saving: it is no use."""
        for folder in self._begun:
            if not (folder / MANIFEST).exists():
                shutil.rmtree(folder, ignore_errors=True)

    def folder(self, boundary: int, kind: str = UNPLANNED) -> Path:
        """Return the folder of the checkpoint of that boundary: below the first of the folders that has not refused one.

        `kind`: of the migration. The name of a checkpoint that was asked for says so: it is not removed with just-in-time ones.
        """
        c = self._config
        below = Path(choose_folder(self._folders(), self._refused).path or c.jit_dir).absolute()
        number = c.restarts_done
        while True:
            again = f"-again{number}" if number else ""
            folder = below / f"{c.jit_prefix}{c.run_id}{again}-step{boundary}{ASKED_FOR if kind == SAVE else ''}"
            # Nothing is written into a whole checkpoint: ranks may have entered from it. Where others write, its name says that.
            if c.adopted:
                return folder
            if not (folder / MANIFEST).exists():
                self._begun.append(folder)
                return folder
            number += 1

    def elsewhere(self, s: State, reason: str) -> m.FolderChosen | m.CheckpointFailed:
        """Choose the next folder for what could not be written. What was written so far is removed."""
        refused = next((f for f in self._folders() if Path(f).absolute() == Path(s.directory).parent), s.directory)
        self._refused[refused] = reason
        if not self._config.adopted:
            shutil.rmtree(s.directory, ignore_errors=True)
        choice = choose_folder(self._folders(), self._refused)
        if not choice.path:
            return m.CheckpointFailed(choice.reason)
        return m.FolderChosen(str(self.folder(s.target, s.kind)), choice.reason)

    def _folders(self) -> tuple[str, ...]:
        return (self._config.jit_dir, *self._config.jit_dirs_more)

    def tensors_saved(self, rank: int, size_bytes: int) -> None:
        self._sizes[rank] = size_bytes

    def write(self, s: State, directory: str) -> Answer | None:
        """Write the checkpoint's files. None: the answer comes later, by `kept` or `lost`."""
        saved = saved_job(self._job, s, self._config.run_id, self._sizes)
        if isinstance(saved, Cannot):
            return m.CheckpointFailed(saved.reason)
        saved = dataclasses.replace(saved, origin=_origin(self._config))
        self._checkpoint = saved
        self._directory = directory
        if self._config.adopted:
            return self._send(s)
        try:
            write_checkpoint(Path(directory), saved)
        except OSError as e:
            return self.elsewhere(s, str(e))
        return self._written()

    def kept(self, worker: str) -> Answer | None:
        """Return the answer if this worker was the writer: it has written everything."""
        return self._written() if worker == self._writer else None

    def lost(self, s: State, worker: str) -> Answer | None:
        """Have another worker write, if this one was the writer: it is gone, or cannot write."""
        return self._send(s, {worker}) if worker == self._writer else None

    def _send(self, s: State, without: set[str] = frozenset()) -> Answer | None:  # type: ignore[assignment]  # a frozenset does as well
        assert self._checkpoint is not None
        able = [
            s.holders[r]
            for r in s.survivors
            if r not in s.departed and s.holders[r] not in without and self._job.workers[s.holders[r]].alive
        ]
        if not able:
            return self.elsewhere(s, f"nobody is left who could write to {self._directory}")
        self._writer = able[0]
        pieces = [
            (name, data[at : at + PIECE_BYTES], at + PIECE_BYTES >= len(data))
            for name, data in checkpoint_files(self._checkpoint).items()
            for at in range(0, len(data), PIECE_BYTES)
        ]
        for number, (name, piece, whole) in enumerate(pieces, 1):
            order = KeepFile(s.generation, self._directory, name, piece, whole, number == len(pieces))
            self._outbox.to_worker(self._writer, order)
        return None

    def _written(self) -> m.CheckpointWritten:
        assert self._checkpoint is not None
        self._writer = ""
        command = self._config.resume_command.replace("{directory}", self._directory)
        commands = self.resume_commands(self._directory)
        self._outbox.emit(CheckpointSaved(self._directory, self._checkpoint.target, command, commands))
        return m.CheckpointWritten(self._directory)


def writes_no_more(event: m.Event) -> str:
    """Return the worker that writes no file any more after this event, or empty."""
    if isinstance(event, m.RankLost):
        return event.worker
    return event.worker if isinstance(event, m.Said) and isinstance(event.report, OrderFailed) else ""


def _origin(config: ControllerConfig) -> CheckpointOrigin:
    return CheckpointOrigin(config.command, config.script_sha256, config.job_id)
