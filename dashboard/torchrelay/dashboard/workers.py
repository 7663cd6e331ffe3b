"""What the name of a worker says, and how one ended. Pure."""

from __future__ import annotations

from torchrelay.protocol import events
from torchrelay.protocol.words.process_ends import how_ended


def agent_of(worker: str) -> str:
    """Return the name of the worker's agent, with which the worker's name begins."""
    return worker.rpartition(".")[0]


def spread(world_size: int, nodes: tuple[str, ...]) -> list[str]:
    """Return which worker begins with each rank, if the event does not say it: in the order in which `torchrelay run` does."""
    if not nodes or world_size % len(nodes):
        return []
    each = world_size // len(nodes)
    return [f"{node}.w{place}" for node in nodes for place in range(each)]


def ended(what: events.WorkerEnded) -> str:
    """Say in words how a process ended."""
    return f"its process {what.worker} {how_ended(what.signal, what.exit_code)}"
