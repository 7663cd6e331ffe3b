"""Lists that training has made, of elements that cannot be carried: a new process has nothing to put in their places.

A list is put back only whole. One that set-up has made with as many elements is in a new process, too, and keeps those that are
not carried. Of another one the migration would fail, so the promise is withdrawn before.
"""

from __future__ import annotations

from collections.abc import Hashable

from torchrelay.protocol.messages import Gap
from torchrelay.protocol.names import BARS
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.observe.origins import where_made


class LackingElements:
    def __init__(self) -> None:
        self.found: tuple[int, ...] = ()
        """Nodes of the latest state that was looked at."""
        self._of_set_up: set[tuple[str, int]] = set()
        self._of_steps: set[str] = set()
        """Ways to those that steps have made, in whichever loop."""
        self._loop: Hashable = None

    def look(self, state: HostState, boundary: int, loop: Hashable) -> None:
        """Find the lists whose elements only training has made. `loop`: the outermost one.

        What is there at boundary 0, where this process takes over a rank, or where an outermost loop begins, another process makes
        as well: by its set-up, or by what stands between two loops.
        """
        known = {number: (state.path(number), len(state.nodes[number].content)) for number in sorted(state.lacking)}
        if boundary == 0 or loop != self._loop:
            self._of_set_up.update(name for name in known.values() if name[0] not in self._of_steps)
        self._loop = loop
        self.found = tuple(number for number, name in known.items() if name not in self._of_set_up)
        self._of_steps.update(known[number][0] for number in self.found)

    def gaps(self, state: HostState, boundary: int, loop: Hashable) -> list[Gap]:
        """Look, and return a gap for each of those lists that the state has."""
        self.look(state, boundary, loop)
        found = []
        for number in self.found:
            node = state.nodes[number]
            what = f"training has put into this {type(node.obj).__name__} what cannot be captured"
            text = f"{state.path(number)}: {what}: no rank can be replaced"
            found.append(Gap("object", BARS, text, *where_made(state, node.parent, node.key)))
        return found
