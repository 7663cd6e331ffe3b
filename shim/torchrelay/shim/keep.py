"""Copies of the whole state in host memory, taken now and then at boundaries: what a job goes back to where nobody else
holds what a lost rank had.

A copy is made on the training thread, so it is of one moment; it lies in shared memory, so it outlives the process, and the
rank itself starts over from it. Two are kept: while one is written, the other is whole.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from torchrelay.protocol.errors import TorchrelayError
from torchrelay.protocol.kept import KeptParts, open_slot, read_parts, slot_folder, write_parts

if TYPE_CHECKING:
    from torchrelay.shim.commit import Commit
    from torchrelay.shim.engine import Engine


class Keeper:
    """`every`: steps between two copies; `folder`: this node's, see `protocol.kept`."""

    def __init__(self, engine: Engine, every: int, folder: Path) -> None:
        self._engine, self.every, self._folder = engine, every, folder
        self.size_bytes = 0
        self._took_s, self._taken = 0.0, 0
        self.failed = ""
        """Why the latest copy could not be made."""

    @property
    def mean_s(self) -> float:
        """What a copy costs on the training thread."""
        return self._took_s / self._taken if self._taken else 0.0

    def at_boundary(self, commit: Commit) -> None:
        if commit.boundary % self.every or self._engine.shadow is not None:
            return
        slot = slot_folder(self._folder, self._engine.rank, commit.boundary, self.every)
        started_s = time.perf_counter()
        try:
            before = read_parts(slot)
            if before is not None and before.boundary == commit.boundary:
                return  # this process has just entered from it
            self._copy(commit, slot)
        except (OSError, TorchrelayError) as e:
            self.failed = f"the state could not be copied at boundary {commit.boundary}: {e}"
        else:
            self.failed = ""
            self._took_s, self._taken = self._took_s + time.perf_counter() - started_s, self._taken + 1

    def _copy(self, commit: Commit, slot: Path) -> None:
        from torchrelay.shim import tensor_files

        engine = self._engine
        journal, set_up = engine.writer.latest
        open_slot(slot)
        write_parts(slot, KeptParts(commit.boundary, journal, set_up, engine.layouts.as_text(commit.boundary)))
        self.size_bytes = tensor_files.save(slot, engine.replicas.tensors(commit))
