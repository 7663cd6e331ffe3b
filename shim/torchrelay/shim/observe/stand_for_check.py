"""`torchrelay check`: the rank trains for a few steps, stands still at the head of its loop, and is ended there from outside."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from torchrelay.protocol.messages import Held
from torchrelay.protocol.words.positions import RankPhase
from torchrelay.shim.agent_link.link import AgentLink

if TYPE_CHECKING:
    from torchrelay.shim.observe.check_record import CheckProgress
    from torchrelay.shim.observe.protection_report import ProtectionReporter
    from torchrelay.shim.step.boundary_snapshot import BoundarySnapshot


class HeldRank(Protocol):
    """What it takes to hold a rank at the head of its loop."""

    @property
    def link(self) -> AgentLink: ...
    @property
    def reporter(self) -> ProtectionReporter: ...
    def phase(self, phase: RankPhase) -> None: ...


class CheckHold:
    def __init__(self, engine: HeldRank, boundary: int, seen: CheckProgress) -> None:
        self._engine = engine
        self._boundary = boundary
        self._seen = seen

    def at(self, commit: BoundarySnapshot) -> None:
        """Stand still for ever once the boundary is reached, and the rank has gone through what a check is to go through."""
        if self._seen.is_enough(commit.boundary, self._boundary):
            self._engine.reporter.report(commit, always=True)
            self._engine.phase(RankPhase.STANDING)
            self._engine.link.send(Held(commit.boundary))
            self._engine.link.wait_until_lost()
            os._exit(0)  # whatever the script does at its end belongs to a whole run
