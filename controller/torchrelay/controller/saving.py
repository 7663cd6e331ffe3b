"""A just-in-time checkpoint's files besides the tensors: written here, or by a survivor where only pods reach the folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from torchrelay.controller.checkpoint import JobCheckpoint, Origin, checkpoint_files, write_checkpoint
from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.decide.stand import Cannot
from torchrelay.controller.job import Job
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.targets import saved_job
from torchrelay.protocol import migration_events as m
from torchrelay.protocol.events import CheckpointSaved
from torchrelay.protocol.messages import ClearCheckpoints, KeepFile, OrderFailed
from torchrelay.protocol.migration_state import State

PIECE_BYTES = 8 << 20
"""Of a file in one order; a frame to a shim must not be larger than `names.MAX_FRAME_BYTES`, as text."""
Answer = m.CheckpointWritten | m.CheckpointFailed


class Saving:
    def __init__(self, config: ControllerConfig, job: Job, outbox: Outbox) -> None:
        self._config, self._job, self._outbox = config, job, outbox
        self._sizes: dict[int, int] = {}
        self._checkpoint: JobCheckpoint | None = None
        self._directory, self._writer = "", ""

    def clear(self, keep: int) -> None:
        """Where folders are the job's own, and nobody else looks after them."""
        c, job = self._config, self._job
        if not (c.adopted and c.jit_prefix and c.jit_dir) or c.jit_barred or 0 not in job.holders:
            return
        name = c.run_id.rpartition("-")[0]
        self._outbox.to_worker(job.holders[0], ClearCheckpoints(str(Path(c.jit_dir).absolute()), name, keep))

    def begin(self) -> None:
        """Another migration: nothing is saved yet."""
        self._sizes.clear()
        self._checkpoint, self._writer = None, ""

    def tensors_saved(self, rank: int, size_bytes: int) -> None:
        self._sizes[rank] = size_bytes

    def write(self, s: State, directory: str) -> Answer | None:
        """None: the answer comes later, by `kept` or `lost`."""
        saved = saved_job(self._job, s, self._config.run_id, self._sizes)
        if isinstance(saved, Cannot):
            return m.CheckpointFailed(saved.reason)
        saved = dataclasses.replace(saved, origin=Origin(self._config.command, self._config.script_sha256))
        self._checkpoint, self._directory = saved, directory
        if self._config.adopted:
            return self._send(s)
        try:
            write_checkpoint(Path(directory), saved)
        except OSError as e:
            return m.CheckpointFailed(f"the checkpoint cannot be written to {directory}: {e}")
        return self._written()

    def kept(self, worker: str) -> Answer | None:
        """The worker has written everything."""
        return self._written() if worker == self._writer else None

    def lost(self, s: State, worker: str) -> Answer | None:
        """The worker is gone, or cannot write: another one is to."""
        return self._send(s, {worker}) if worker == self._writer else None

    def _send(self, s: State, without: set[str] = frozenset()) -> m.CheckpointFailed | None:  # type: ignore[assignment]  # a frozenset does as well
        assert self._checkpoint is not None
        able = [
            s.holders[r]
            for r in s.survivors
            if r not in s.departed and s.holders[r] not in without and self._job.workers[s.holders[r]].alive
        ]
        if not able:
            return m.CheckpointFailed(f"nobody is left who could write the checkpoint to {self._directory}")
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
        self._outbox.emit(CheckpointSaved(self._directory, self._checkpoint.target, command))
        return m.CheckpointWritten(self._directory)


def writes_no_more(event: m.Event) -> str:
    """The worker that writes no file any more after this, or empty."""
    if isinstance(event, m.RankLost):
        return event.worker
    return event.worker if isinstance(event, m.Said) and isinstance(event.report, OrderFailed) else ""
