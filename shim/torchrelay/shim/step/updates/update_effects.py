"""What an update leaves in plain values and small tensors that no optimizer's state has: a step size that adapts, an own momentum.

A rank that is lost behind its gate is restored by going through the rest of that step once more, without the gradients of others.
What its update computes from these is wrong, and has to come from a rank that has made the same update.

Which updates leave such things is seen at a process's first ones and now and then, by a walk that goes everywhere, as that at a
gate. From then on a walk behind each of them goes to what optimizers lead to, and to what updates were seen to change.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterator

from torchrelay.shim.capture.records.effects import Effect, Way, effects, is_first_value, leaves, may_be_computed
from torchrelay.shim.capture.state.change_detection import WalkAnew
from torchrelay.shim.capture.state.edges import reached_from
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.values.kinds import GONE, Kind

_FIRST_UPDATES = 4
_LOOK_EACH = 64
"""Looked behind at the first updates of a process, and at each so many-th one."""
_MOST_NODES = 2048
"""That optimizers lead to; where there are more, each walk goes everywhere."""
_NO_PART = frozenset({Kind.MODULE, Kind.DDP, Kind.LOADER, Kind.DATASET, Kind.FRAME, Kind.GLOBALS})
"""What an optimizer may lead to and does not write numbers to, or has ways of its own."""
_ROOTS = frozenset({Kind.FRAME, Kind.GLOBALS})

Within = Collection[int] | None
"""Numbers of the nodes that are looked at; None: all."""


class UpdateEffects:
    def __init__(self) -> None:
        self.changed_before: set[tuple[Way, bool]] = set()
        """What updates may have computed, and whether that was more than a first value."""
        self._is_told = False
        """Whether updates were seen to compute anything, so that each one is looked behind."""
        self._written: bytes | None = None
        self._holders: set[int] = set()
        """Numbers of the nodes that held it, and of those that are looked at for it."""
        self._updates = 0
        self._looks_everywhere = True
        self._reached: set[int] | None = None
        """Numbers of the nodes at the latest boundary that optimizers lead to; None where that is not known."""
        self._at_gate: HostState | None = None
        """Of the gate that this process is at, or has passed."""
        self._latest: dict[Way, Effect] | None = None
        """None where nobody has looked behind the latest update."""

    def at_boundary(self, state: HostState) -> None:
        """Prepare at each boundary: optimizers may lead to more than at the one before."""
        reached = self._reached
        if not state.takes_over or (
            reached is not None and any(n in reached and state.nodes[n].edges for n in state.renewed)
        ):
            self._reached = None

    def at_gate(self, state: HostState) -> None:
        self._looks_everywhere = self._updates < _FIRST_UPDATES or self._updates % _LOOK_EACH == 0
        self._at_gate = state if self._is_told or self._looks_everywhere else None

    def gate_passed(self) -> None:
        """Forget the latest effects: until the update is done no rank knows what it leaves."""
        self._latest = None
        self._updates += 1

    def drop(self) -> None:
        """Forget the states, since the rank is no longer protected: what they hold is the script's to free."""
        self._at_gate = self._latest = None

    def note(self, boundary: HostState, walk: Callable[[Within], HostState], *, is_last: bool) -> bool:
        """Look what an update has left, right after it; the latest one of a step counts, `is_last`. Return whether it has looked.

        `boundary`: the state there. `walk`: goes on from it.
        """
        at_gate = self._at_gate
        if at_gate is None:
            return False
        if is_last:
            self._at_gate = None  # the objects that it holds are the script's to free
        within = self._expected(boundary)
        try:
            now = walk(within)
        except WalkAnew:
            within = None
            now = walk(None)
        found = effects(at_gate, now, within)
        if within is None and self._is_told:
            known = {way for way, _ in self.changed_before}
            held = leaves(now, (n for n, node in enumerate(now.nodes) if node.kind is not GONE))
            self._holders = {
                n for way, leaf in held.items() if way in known for n in _anchored(boundary, now, leaf.number)
            }
        self._latest = self._unchanged(now) | found
        changed = {(way, not is_first_value(effect)) for way, effect in found.items() if may_be_computed(effect)}
        if not changed <= self.changed_before:
            self.changed_before |= changed
            self._is_told = True
            self._written = None
        for effect in found.values():
            self._holders.update(_anchored(boundary, now, effect.number))
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

    def _expected(self, boundary: HostState) -> Within:
        """Return where changes are looked for behind this update."""
        nodes = boundary.nodes
        reached = self._reached
        if reached is None and not self._looks_everywhere:
            optimizers = (n for n, node in enumerate(nodes) if node.kind is Kind.OPTIMIZER)
            reached = reached_from(boundary, optimizers, _NO_PART, _MOST_NODES)
        self._reached = reached
        if (
            self._looks_everywhere
            or reached is None
            or any(n < len(nodes) and nodes[n].kind in _ROOTS for n in self._holders)
        ):
            return None
        return reached | self._holders

    def _unchanged(self, now: HostState) -> dict[Way, Effect]:
        """Return what other updates have changed, and this one may not have: a number that was computed anew, and is the same."""
        there = leaves(now, (n for n in self._holders if n < len(now.nodes) and now.nodes[n].kind is not GONE))
        known = {way for way, _ in self.changed_before}
        return {way: Effect((leaf.value,), (leaf.value,)) for way, leaf in there.items() if way in known}


def _anchored(boundary: HostState, now: HostState, number: int) -> Iterator[int]:
    """Yield a node and those that lead to it, up to one that the boundary has as well: a new object is found from there."""
    while number >= 0:
        yield number
        if number < len(boundary.nodes) and boundary.nodes[number].obj is now.nodes[number].obj:
            return
        number = now.nodes[number].parent
