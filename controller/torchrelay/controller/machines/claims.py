"""Who leads, written into a folder that all machines of a job share: the first one that writes it down has it."""

from __future__ import annotations

import os
from pathlib import Path

from torchrelay.protocol.names import claim_file


class Claims:
    """`job`: its name among those of the same run. What cannot be written or read, as in a folder that is gone, is not had."""

    def __init__(self, folder: Path, run_id: str, job: str) -> None:
        self._folder = folder
        self._run_id = run_id
        self._job = job

    def claim(self, after: int, epoch: int) -> bool:
        """Whether `epoch` is the one that follows `after`."""
        path = self._folder / claim_file(self._run_id, self._job, after)
        whole = path.with_name(f"{path.name}.{epoch}")
        try:
            whole.write_text(str(epoch), encoding="ascii")
            try:
                os.link(whole, path)  # done by one machine alone, also on NFS
            except FileExistsError:
                return path.read_text(encoding="ascii") == str(epoch)
            finally:
                whole.unlink(missing_ok=True)
        except (OSError, ValueError):
            return False
        return True
