"""Training loops one after the other: what a new process needs of those that are over, to get to the one that runs.

It goes through the script from its top, and what set-up follows a loop (another optimizer, another wrapper) it has to do itself.
It cannot do the loop's steps; of each it does the last iteration, from the loop's last boundary. What decides there to leave the
loop, such as a loss that is compared with the best one, has no right numbers there: the loop ends for it where it had ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchrelay.shim.instrument.activation import Activation
from torchrelay.shim.journal.payload import PassedLoop


@dataclass
class _Latest:
    activation: Activation
    around: tuple[Activation, ...]
    journal: Sequence[bytes]
    gate: bytes
    trees: tuple[Any, ...]


class FinishedLoops:
    """`passed` follows the nesting of the loops, as the log of the collectives does: heads cut it back to their own mark."""

    def __init__(self) -> None:
        self.passed: list[PassedLoop] = []
        self._latest: _Latest | None = None

    def boundary(self, links: Sequence[Activation], journal: Sequence[bytes], trees: tuple[Any, ...]) -> None:
        """Note the journal of a boundary of the innermost of `links`, in parts."""
        self._latest = _Latest(links[-1], tuple(links[:-1]), journal, b"", trees)

    def gate(self, journal: bytes) -> None:
        if self._latest is not None:
            self._latest.gate = journal

    def head(self, activation: Activation, running: Sequence[Activation]) -> None:
        """Note any loop's head. `running`: the loops up to this one."""
        latest = self._latest
        if activation.heads == 1:
            if latest is not None and latest.activation not in running:
                depth = sum(1 for a, b in zip(latest.around, running) if a is b)
                over = (*latest.around, latest.activation)[depth:]
                first = over[0]
                heads = tuple(loop.heads for loop in over)
                mark = first.first_mark - (latest.around[depth - 1].head_mark if depth else 0)
                journal = b"".join(latest.journal)
                self.passed.append(PassedLoop(first.site, first.entry, journal, latest.gate, latest.trees, mark, heads))
                self._latest = None
            activation.first_passed = len(self.passed)
        else:
            del self.passed[activation.first_passed :]
            if latest is not None and activation in latest.around:
                self._latest = None

    def between(self, outer: Activation | None, inner: Activation) -> tuple[PassedLoop, ...]:
        """Return the loops between the latest head of `outer` (None: the script's start) and the first one of `inner`."""
        return tuple(self.passed[outer.first_passed if outer is not None else 0 : inner.first_passed])
