"""What an agent tells Prometheus, read off its state when it is asked."""

from __future__ import annotations

from collections.abc import Iterator

from torchrelay.agent.connections.session import Session
from torchrelay.protocol.messages import RoomLeft
from torchrelay.protocol.metrics import table as t
from torchrelay.protocol.metrics.samples import Sample
from torchrelay.protocol.security.pod_tls import PodLeaf


def session_samples(session: Session, processes: int) -> Iterator[Sample]:
    """Of its stream to the controller, and how many processes it looks after."""
    yield Sample(t.AGENT_CONNECTED, (), float(session.connected))
    yield Sample(t.AGENT_AWAY, (), session.away_s)
    yield Sample(t.AGENT_WAITING, (), session.waiting)
    yield Sample(t.AGENT_PROCESSES, (), processes)


def room_samples(room: RoomLeft | None) -> Iterator[Sample]:
    """Nothing before it was looked at."""
    if room is not None:
        yield Sample(t.AGENT_ROOM, (t.JOURNALS,), room.memory.free_bytes)
        for folder in room.folders[:1]:
            yield Sample(t.AGENT_ROOM, (t.CHECKPOINTS,), folder.free_bytes)


def certificate_samples(leaf: PodLeaf | None) -> Iterator[Sample]:
    """Nothing before there is one."""
    if leaf is not None:
        yield Sample(t.CERTIFICATE_BEGINS, (t.OWN,), leaf.begins.timestamp())
        yield Sample(t.CERTIFICATE_ENDS, (t.OWN,), leaf.expires.timestamp())
