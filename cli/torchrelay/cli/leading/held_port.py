"""The port that this machine's controllers listen on, kept for them from the command's start to its end."""

from __future__ import annotations

import socket
from typing import NamedTuple

import psutil

from torchrelay.cli.command_line.options import RunOptions
from torchrelay.cli.machine import LocalMachine, any_address_socket
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.names import DEFAULT_CONTROLLER_PORT

COMMAND_CHARACTERS = 80


class HeldPort(NamedTuple):
    """A port that is kept. `sock` is bound and never listens.

    While it is open, only a controller that is told so can use the port.
    """

    port: int
    sock: socket.socket


def hold(port: int) -> HeldPort:
    """Take the port, or any free one for 0. Raises OSError if somebody else has it.

    Linux lets a second socket have a port if both say SO_REUSEPORT and are of one user. So that two commands do not share one,
    the port is taken first by a socket that listens and does not say so.
    """
    machine = LocalMachine()
    with any_address_socket() as alone, any_address_socket() as kept:
        alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        alone.bind(("", port or machine.free_port()))
        alone.listen(1)
        alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind(("", alone.getsockname()[1]))
        return HeldPort(kept.getsockname()[1], kept.dup())


def hold_or_another(port: int) -> HeldPort:
    """Take the port with `hold`, or another port if this one is taken."""
    try:
        return hold(port)
    except OSError:
        return hold(0)


def check_given_port(options: RunOptions) -> None:
    """Raise UserError if this machine could not have the port that it was given for the job's first controller.

    The other machines look for the controller at that port.
    """
    wanted = options.given.controller_port
    free = options.controller_port
    if options.nnodes > 1 and wanted is None:
        wanted = DEFAULT_CONTROLLER_PORT
    if wanted is not None and wanted != free:
        whose = "the machines" if options.nnodes > 1 else "it"
        raise UserError(
            f"--controller-port {wanted} is in use on this machine: {holder(wanted)}. "
            f"End that, or give {whose} another port: `--controller-port {free}`"
        )


def holder(port: int) -> str:
    """Say which process listens on the port."""
    pids = {c.pid for c in psutil.net_connections("tcp") if c.laddr and c.laddr.port == port and c.status == "LISTEN"}
    for pid in filter(None, pids):
        try:
            process = psutil.Process(pid)
            command = " ".join(process.cmdline())[:COMMAND_CHARACTERS]
            return f"process {pid} of {process.username()} listens there (`{command}`)"
        except psutil.Error:  # it has ended, or is hidden from this user
            continue
    if pids:
        return "a process of another user, or of another container, listens there"
    return "another `torchrelay run` keeps it for its controller"
