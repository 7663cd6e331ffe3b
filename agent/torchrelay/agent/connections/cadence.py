"""How often the agent looks at its workers, and which looks it tells the controller of. Pure.

What the agent does costs training processor time: it does as little as possible while all goes well. The ends and stops
of processes wait for no look: the kernel reports them.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchrelay.protocol.machine.process_states import CANNOT_GO_ON
from torchrelay.protocol.messages import WorkerProgress
from torchrelay.protocol.transport.telling import MOST_TELL_S, TELL_S, can_wait, condition

CALM_LOOK_S = 0.5
"""How late the beginning of a hang may be noted; the shortest limit for one is 4 s."""
CLOSE_LOOK_S = 0.05
"""While a migration is under way, or a process of this node is stopped."""


class Cadence:
    """`closely`: the controller wants every change, which it does during a migration."""

    def __init__(self) -> None:
        self.closely = False
        self._pace_s = TELL_S
        self._told: list[tuple[object, ...]] = []
        self._told_s = 0.0

    def is_to_be_told(self, seen: Sequence[WorkerProgress], now_s: float) -> bool:
        """Whether the controller is to know now; if so, it counts as told."""
        news = list(map(_facts if self._is_close(seen) else _condition, seen))
        pause_s = self._pace_s if all(map(can_wait, seen)) else TELL_S
        if news == self._told and now_s - self._told_s < pause_s:
            return False
        self._told = news
        self._told_s = now_s
        return True

    def take_pace(self, seconds: float) -> None:
        """How often the controller wants to hear of ranks that only move on."""
        self._pace_s = min(max(TELL_S, seconds), MOST_TELL_S)

    def pause_s(self, seen: Sequence[WorkerProgress]) -> float:
        """Until the next look."""
        return CLOSE_LOOK_S if self._is_close(seen) else CALM_LOOK_S

    def _is_close(self, seen: Sequence[WorkerProgress]) -> bool:
        # A stopped process is replaced after a second if its peers wait: the controller has to know by then.
        return self.closely or any(p.process_state in CANNOT_GO_ON for p in seen)


def _facts(p: WorkerProgress) -> tuple[object, ...]:
    return p.worker, p.boundary, p.gates_passed, p.phase, p.waiting, p.count, p.process_state


def _condition(p: WorkerProgress) -> tuple[object, ...]:
    return p.worker, *condition(p)
