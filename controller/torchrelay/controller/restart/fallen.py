"""A job that cannot go on in the processes that it has."""

from __future__ import annotations

from dataclasses import dataclass

from torchrelay.controller.migration.state import State


@dataclass(frozen=True)
class Fallen:
    """`rank` is lost, as `migration` ended with (None: there was none). `exit_code` and `reason` are the job's, if that is the end.

    `directory`: of the just-in-time checkpoint; empty where there is none because of `refused`.
    """

    exit_code: int
    reason: str
    rank: int
    migration: State | None = None
    directory: str = ""
    refused: str = ""
    losses_at_step: int = 1
    """How often the rank was lost where it is lost now."""

    @property
    def no_spare(self) -> str:
        return self.migration.no_spare if self.migration is not None else ""

    @property
    def step(self) -> int:
        """Of the checkpoint in `directory`."""
        return self.migration.target if self.migration is not None else -1
