"""What a rank remembers of its latest boundary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchrelay.shim.adapters.process_groups.process_group import GroupNames
from torchrelay.shim.capture import rng
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.data.replayed_item import ReplayedItem
from torchrelay.shim.instrument.activation import Activation


@dataclass
class BoundarySnapshot:
    """The latest boundary: enough to go back to it in this process."""

    boundary: int
    activation: Activation
    item: ReplayedItem
    state: HostState
    rng: rng.RngState
    heads: int
    """How often the loop's head had been reached: a step of several iterations goes back past some."""
    place: str
    """As payload.place_of has it."""
    saves: Mapping[str, int]
    """How many async saves had been begun in each group."""
    groups: GroupNames
    """Of the process groups that there were."""
    scripted: int
    """How many of the calls in ScriptedCalls had been made."""
    head: bytes = b""
    """As its activation has it."""
