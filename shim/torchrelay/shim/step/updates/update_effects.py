"""What an update leaves in plain values and small tensors that no optimizer's state has: a step size that adapts, an own momentum.

A rank that is lost behind its gate is restored by going through the rest of that step once more, without the gradients of others.
What its update computes from these is wrong, and has to come from a rank that has made the same update.

Which updates leave such things is seen at a process's first ones and now and then. From then on a walk behind each of them costs
as much as the one at the gate.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable

from torchrelay.shim.capture.records.effects import Effect, Way, effects, is_first_value, leaves, may_be_computed
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.values.kinds import GONE

_FIRST_UPDATES, _LOOK_EACH = 4, 64
"""Looked behind at the first updates of a process, and at each so many-th one."""


class UpdateEffects:
    def __init__(self) -> None:
        self.changed_before: set[tuple[Way, bool]] = set()
        """What updates may have computed, and whether that was more than a first value."""
        self._is_told = False
        """Whether updates were seen to compute anything, so that each one is looked behind."""
        self._written: bytes | None = None
        self._holders: set[int] = set()
        """Numbers of the nodes that held it."""
        self._updates = 0
        self._at_gate: HostState | None = None
        """Of the gate that this process is at, or has passed."""
        self._latest: dict[Way, Effect] | None = None
        """None where nobody has looked behind the latest update."""

    def at_gate(self, state: HostState) -> None:
        looks = self._is_told or self._updates < _FIRST_UPDATES or self._updates % _LOOK_EACH == 0
        self._at_gate = state if looks else None

    def gate_passed(self) -> None:
        """Until the update is done nobody knows what it leaves."""
        self._latest = None
        self._updates += 1

    def drop(self) -> None:
        """The rank is no longer protected: what the states hold is the script's to free."""
        self._at_gate = self._latest = None

    def note(self, walk: Callable[[], HostState], *, is_last: bool) -> bool:
        """Right after an update; the latest one of a step counts, `is_last`. Return whether it has looked."""
        at_gate = self._at_gate
        if at_gate is None:
            return False
        if is_last:
            self._at_gate = None  # the objects that it holds are the script's to free
        now = walk()
        found = effects(at_gate, now)
        self._latest = self._unchanged(now) | found
        changed = {(way, not is_first_value(effect)) for way, effect in found.items() if may_be_computed(effect)}
        if not changed <= self.changed_before:
            self.changed_before |= changed
            self._is_told, self._written = True, None
        self._holders.update(effect.number for effect in found.values() if effect.number >= 0)
        return True

    def latest(self) -> bytes:
        """Return the effects of the latest update by way, pickled; nothing where nobody has looked."""
        return b"" if self._latest is None else pickle.dumps(self._latest)

    def known(self) -> bytes:
        """Return what a process that takes over this rank has to know, for `take_over`."""
        if self._written is None:
            self._written = pickle.dumps((self._is_told, self.changed_before)) if self._is_told else b""
        return self._written

    def take_over(self, known: bytes) -> None:
        """Go on as the lost rank would have."""
        self._is_told, self.changed_before = pickle.loads(known) if known else (False, set())
        self._written = None

    def _unchanged(self, now: HostState) -> dict[Way, Effect]:
        """What others have changed, and this one may not have: a number that was computed anew, and is the same."""
        there = leaves(now, (n for n in self._holders if n < len(now.nodes) and now.nodes[n].kind is not GONE))
        known = {way for way, _ in self.changed_before}
        return {way: Effect((leaf.value,), (leaf.value,)) for way, leaf in there.items() if way in known}
