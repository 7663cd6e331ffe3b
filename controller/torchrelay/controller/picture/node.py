"""What is known of one node: a machine, or a pod."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchrelay.protocol.messages import RoomLeft


@dataclass
class Node:
    """`heard_s`: when its agent last said anything. `lost`: why it was given up; empty while it was not."""

    node: str
    node_rank: int
    host: str
    copies_port: int
    copies_token: bytes
    heard_s: float
    away_since_s: float | None = None
    lost: str = ""
    spares: int = 0
    """How many it is to have."""
    links_down: bool = False
    """Whether a rank there was cut off from the others by the network: it may be the machine's links, and not that process's."""
    free_gpus: tuple[str, ...] = ()
    """GPUs of the job there that no process of it has used."""
    released: bool = False
    """Its agent was told to end, since no process there takes part any more."""
    room: RoomLeft | None = None
    """What is left where its journals lie, and where checkpoints go; None as long as it has not said."""
    copies_of: dict[str, int] = field(default_factory=dict)
    """Workers elsewhere of whose journals it had copies when it came -> the newest gate."""
