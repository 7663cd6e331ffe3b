"""What the name of a worker says, and how one ended. Pure."""

from __future__ import annotations

from torchrelay.protocol import events


def agent_of(worker: str) -> str:
    """The name of a worker begins with that of its agent."""
    return worker.rpartition(".")[0]


def spread(world_size: int, nodes: tuple[str, ...]) -> list[str]:
    """Who begins with each rank, where the event does not say it: as `torchrelay run` gives ranks to machines."""
    if not nodes or world_size % len(nodes):
        return []
    each = world_size // len(nodes)
    return [f"{node}.w{place}" for node in nodes for place in range(each)]


def ended(what: events.WorkerEnded) -> str:
    """In words."""
    how = f"was ended by signal {what.signal}" if what.signal else f"ended with exit code {what.exit_code}"
    return f"its process {what.worker} {how}"
