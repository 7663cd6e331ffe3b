"""Where the controller, the ranks' rendezvous and Prometheus are met, as the command line says it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchrelay.cli.command_line.given import GivenOptions
from torchrelay.cli.command_line.machine_facts import MachineFacts
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.names import (
    AGENT_METRICS_OFFSET,
    DEFAULT_CONTROLLER_PORT,
    DEFAULT_MASTER_PORT,
    DEFAULT_METRICS_PORT,
)

LOOPBACK = "127.0.0.1"


def leads_first(node_rank: int, controllers: Sequence[tuple[str, int]]) -> bool:
    """Return whether the machine starts the first controller, where `controllers` are given."""
    return not controllers or (node_rank == 0 and len(controllers) > 1)


def controllers(given: GivenOptions, nnodes: int) -> tuple[tuple[str, int], ...]:
    """Return where the job's controller may listen; empty: this machine starts the only one. Raises UserError."""
    if given.controller:
        return tuple(parse_address("--controller", text) for text in given.controller.split(","))
    if nnodes == 1 or given.node_rank == 0 or given.master_addr is None:
        return ()
    return ((given.master_addr, given.controller_port or DEFAULT_CONTROLLER_PORT),)


def parse_address(option: str, text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`, `HOST` or `[IPv6]:PORT`. Raises UserError."""
    match = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::(\d{1,5}))?", text)
    if match is None:
        raise UserError(f"{option} {text}: give HOST:PORT, as in node0:{DEFAULT_CONTROLLER_PORT}")
    port = int(match[3]) if match[3] else DEFAULT_CONTROLLER_PORT
    _check_port(option, port)
    return match[1] or match[2], port


def master_port(given: GivenOptions, nnodes: int, machine: MachineFacts) -> int:
    """Return the port at which ranks meet. Raises UserError."""
    if given.master_port is None and nnodes == 1:
        return machine.free_port()
    port = DEFAULT_MASTER_PORT if given.master_port is None else given.master_port
    _check_port("--master-port", port)
    if given.node_rank == 0 and not machine.port_is_free(port):
        advice = "give another" if nnodes > 1 else "give another, or none to have a free one chosen"
        raise UserError(f"--master-port {port} is in use on this machine: {advice}")
    return port


def controller_port(given: GivenOptions, nnodes: int) -> int:
    """Return the port of a controller that this machine starts; 0: any. Raises UserError."""
    if given.controller_port is None and nnodes == 1:
        return 0
    port = DEFAULT_CONTROLLER_PORT if given.controller_port is None else given.controller_port
    _check_port("--controller-port", port)
    return port


def metrics_address(text: str | None) -> tuple[str, int] | None:
    """Return host and port of --metrics-port. Raises UserError."""
    if text is None:
        return None
    found = re.fullmatch(r"(?:(?:\[([^\]]+)\]|([^:\[\]]+)):)?(\d{1,5})", text)
    if found is None:
        raise UserError(f"--metrics-port {text}: give a port, or HOST:PORT as in 0.0.0.0:{DEFAULT_METRICS_PORT}")
    port = int(found[3])
    for each in (port, port + AGENT_METRICS_OFFSET):
        _check_port("--metrics-port", each)
    return found[1] or found[2] or LOOPBACK, port


def _check_port(option: str, port: int) -> None:
    if not 1 <= port <= 65535:
        raise UserError(f"{option} {port}: a port is a number from 1 to 65535")
