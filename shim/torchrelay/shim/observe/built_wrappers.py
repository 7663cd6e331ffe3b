"""Where data parallel wrappers were built, and which of them a new process would lack.

A new process goes through set-up, and enters the training loop at its present iteration. It builds what is built in set-up and
in the present iterations of outer loops, in front of the training loop. A wrapper that an earlier iteration has built it does
not have: a script that wraps its model in the first step, if it is not wrapped yet.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from types import FrameType
from typing import NamedTuple

from torch.nn.parallel import DistributedDataParallel

from torchrelay.protocol.messages import Gap
from torchrelay.protocol.names import BARS
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.instrument.activation import Activation
from torchrelay.shim.observe.origins import NOWHERE, SourcePlace, call_site


class _Built(NamedTuple):
    """`loops`: those that ran then, with the iteration of each."""

    place: SourcePlace
    loops: tuple[tuple[Activation, int], ...]


class BuiltWrappers:
    def __init__(self) -> None:
        self._built: weakref.WeakKeyDictionary[DistributedDataParallel, _Built] = weakref.WeakKeyDictionary()

    def add(self, wrapped: DistributedDataParallel, frame: FrameType, stack: Sequence[Activation]) -> None:
        """Note a wrapper that was built in `frame`, within the loops of `stack`, outermost first."""
        self._built[wrapped] = _Built(call_site(frame), tuple((loop, loop.heads) for loop in stack))

    def place(self, wrapped: DistributedDataParallel) -> SourcePlace:
        """Return where it was built."""
        built = self._built.get(wrapped)
        return NOWHERE if built is None else built.place

    def lacking(self, state: HostState, training: Activation, stack: Sequence[Activation]) -> list[SourcePlace]:
        """Return where those wrappers of `state` were built that an iteration before the present ones has built.

        `training`: the loop that trains, one of `stack`.
        """
        present = {id(loop): loop.heads for loop in stack}
        return [
            built.place
            for wrapped, built in self._built.items()
            if id(wrapped) in state.index
            and any(loop is training or present.get(id(loop), heads) != heads for loop, heads in built.loops)
        ]


def gaps(lacking: Sequence[SourcePlace]) -> list[Gap]:
    """Return what keeps ranks from being replaced."""
    text = (
        "the training loop wraps a model in DistributedDataParallel in one iteration and keeps the wrapper for later ones, in "
        "which a new process would have none: no rank can be replaced"
    )
    return [Gap("wrapper-of-a-step", BARS, text, *place) for place in dict.fromkeys(lacking)]
