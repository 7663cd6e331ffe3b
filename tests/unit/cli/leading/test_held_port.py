"""The port of this machine's controllers is theirs for as long as the command lives."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from torchrelay.cli.command_line.checked import check
from torchrelay.cli.command_line.given import GivenOptions
from torchrelay.cli.command_line.options import RunOptions
from torchrelay.cli.leading.held_port import HeldPort, check_given_port, hold, hold_or_another, holder
from torchrelay.cli.machine import LocalMachine
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.security.tls import Credentials, make_server

SECRET = b"0123456789abcdef"


@contextmanager
def held() -> Iterator[HeldPort]:
    port = hold(0)
    with port.sock:
        yield port


@pytest.mark.parametrize("host", ["", "127.0.0.1", "::"])
def test_no_other_program_gets_a_port_that_is_held(host: str) -> None:
    family = socket.AF_INET6 if host == "::" else socket.AF_INET
    with held() as port:
        with pytest.raises(OSError, match="in use"):
            socket.create_server((host, port.port), family=family)  # as servers do: with SO_REUSEADDR
        assert not LocalMachine().port_is_free(port.port)
    socket.create_server((host, port.port), family=family).close()


def test_two_commands_of_one_user_do_not_hold_one_port() -> None:
    with held() as port:
        with pytest.raises(OSError, match="in use"):
            hold(port.port)
        another = hold_or_another(port.port)
        with another.sock:
            assert another.port != port.port


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_one_controller_after_the_other_gets_the_port_and_meanwhile_nobody(host: str) -> None:
    async def lead(port: HeldPort) -> None:
        for _ in range(2):
            server = make_server(port_is_held=True)
            credentials = Credentials.from_secret(SECRET, "controller").server()
            assert server.add_secure_port(f"{host}:{port.port}", credentials) == port.port
            await server.start()
            with pytest.raises(OSError, match="in use"):
                socket.create_server(("", port.port))
            # A connection that this side closes lingers for a minute, and must not be in the way.
            socket.create_connection(("127.0.0.1", port.port), timeout=5).close()
            await server.stop(grace=None)
            with pytest.raises(OSError, match="in use"):
                socket.create_server(("", port.port))

    with held() as port:
        asyncio.run(lead(port))
        with pytest.raises(OSError, match="refused"):  # what is held does not listen
            socket.create_connection(("127.0.0.1", port.port), timeout=5)
    hold(port.port).sock.close()


def test_a_controller_that_is_not_told_so_does_not_share_the_port() -> None:
    async def refused(port: int) -> None:
        with pytest.raises(RuntimeError):
            make_server().add_secure_port(f"0.0.0.0:{port}", Credentials.from_secret(SECRET, "controller").server())

    with held() as port:
        asyncio.run(refused(port.port))


def options(port: int | None, got: int, nnodes: str = "2") -> RunOptions:
    given = GivenOptions(__file__, nproc_per_node="1", nnodes=nnodes, master_addr="127.0.0.1", controller_port=port)
    checked = check(given, LocalMachine(), {"TORCHRELAY_SECRET": SECRET.decode()})
    return dataclasses.replace(checked, controller_port=got)


def test_where_the_others_look_for_this_machine_no_other_port_will_do() -> None:
    check_given_port(options(None, 29476))
    check_given_port(options(4711, 4711))
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError) as caught:
            check_given_port(options(port, 4711))
    said = str(caught.value)
    assert said.startswith(f"--controller-port {port} is in use on this machine: process {os.getpid()} of ")
    assert sys.executable.rpartition("/")[2] in said
    assert said.endswith("End that, or give the machines another port: `--controller-port 4711`")
    alone = options(4711, 4712, nnodes="1")
    with pytest.raises(UserError, match="give it another port"):
        check_given_port(alone)


def test_a_port_without_a_listener_is_another_commands() -> None:
    with held() as port:
        assert holder(port.port) == "another `torchrelay run` keeps it for its controller"
