"""What a command knows of the job's leadership, through all that it starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torchrelay.protocol.messages import LeadReply


@dataclass
class Seat:
    """What a command knows of who leads. `known`: the newest word of a controller that leads.

    `leads`: whether this command starts the next job's first controller.
    `addresses`: wherever controllers of this run may have listened, HOST:PORT.
    """

    leads: bool = True
    known: LeadReply = field(default_factory=lambda: LeadReply(0))
    addresses: tuple[str, ...] = ()

    def add(self, addresses: Iterable[str]) -> None:
        """Add addresses where a controller may listen."""
        self.addresses = tuple(dict.fromkeys((*self.addresses, *filter(None, addresses))))
