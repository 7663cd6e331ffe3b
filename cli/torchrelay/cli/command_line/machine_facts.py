"""What has to be asked of the machine while a command line is checked."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class MachineFacts(Protocol):
    """Answers of this machine, or of one that a test makes up."""

    def cpu_count(self) -> int: ...
    def gpu_count(self) -> int: ...
    def port_is_free(self, port: int) -> bool: ...
    def free_port(self) -> int: ...
    def script_problem(self, script: str) -> str | None:
        """Return why Python could not run `script`, or None."""

    def program_problem(self, program: str) -> str | None:
        """Return why `program` could not be executed, or None."""

    def folder_problem(self, folder: Path) -> str | None:
        """Return why nothing could be written into `folder` (made if absent), or None."""
