"""Lists that training has made, of elements that cannot be carried: a new process has nothing to put in their places.

A list is put back only whole. One that set-up has made with as many elements is in a new process, too, and keeps those that are
not carried. Of another one the migration would fail, so the promise is withdrawn before.
"""

from __future__ import annotations

from torchrelay.protocol.messages import Gap
from torchrelay.protocol.names import BARS
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.observe.origins import where_made


class LackingElements:
    def __init__(self) -> None:
        self.found: tuple[int, ...] = ()
        """Nodes of the latest state that was looked at."""
        self._of_set_up: set[tuple[str, int]] = set()
        self._has_looked = False

    def look(self, state: HostState, boundary: int) -> None:
        """What is there at boundary 0, or where this process takes over a rank, set-up makes in another process as well."""
        known = {number: (state.path(number), len(state.nodes[number].content)) for number in sorted(state.lacking)}
        if boundary == 0 or not self._has_looked:
            self._of_set_up.update(known.values())
        self._has_looked = True
        self.found = tuple(number for number, name in known.items() if name not in self._of_set_up)

    def gaps(self, state: HostState, boundary: int) -> list[Gap]:
        """Look, and return a gap for each of those that the state has."""
        self.look(state, boundary)
        found = []
        for number in self.found:
            node = state.nodes[number]
            what = f"training has put into this {type(node.obj).__name__} what cannot be captured"
            text = f"{state.path(number)}: {what}: no rank can be replaced"
            found.append(Gap("object", BARS, text, *where_made(state, node.parent, node.key)))
        return found
