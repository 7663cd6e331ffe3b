"""What a command knows of the job's leadership, through all that it starts."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchrelay.protocol.messages import LeadReply


@dataclass
class Seat:
    """`known`: the newest word of a controller that leads. `leads`: whether this command starts the next job's first one."""

    leads: bool = True
    known: LeadReply = field(default_factory=lambda: LeadReply(0))
