from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from torchrelay.agent.health.workers.connections import speaks_outside

CONNECTS = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print(f"socket:[{__import__('os').fstat(connection.fileno()).st_ino}]", flush=True)
input()
"""
TO_ITSELF = """
import socket
server = socket.create_server(("127.0.0.1", 0))
connection = socket.create_connection(server.getsockname())
accepted = server.accept()
print(flush=True)
input()
"""


@pytest.fixture
def service() -> Iterator[socket.socket]:
    """A program of this machine that others connect to: this process."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture
def client(service: socket.socket) -> Iterator[tuple[int, str]]:
    """A process that is connected to the service, and its socket's name."""
    port = str(service.getsockname()[1])
    command = [sys.executable, "-c", CONNECTS, port]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        name = child.stdout.readline().strip()
        accepted, _ = service.accept()
        with accepted:
            yield child.pid, name
        child.kill()


def test_a_connection_to_a_program_beside_the_job_is_one_to_the_outside(client: tuple[int, str]) -> None:
    pid, name = client
    assert speaks_outside(pid, [], [])
    assert speaks_outside(pid, ["socket:[1]"], [pid])
    assert not speaks_outside(pid, [name], []), "the job's own socket"


def test_a_connection_to_a_process_of_the_job_is_none_to_the_outside(client: tuple[int, str]) -> None:
    assert not speaks_outside(client[0], [], [os.getpid()])


def test_a_process_that_is_gone_is_no_part_of_the_job(client: tuple[int, str]) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    assert speaks_outside(client[0], [], [gone.pid])


def test_a_connection_of_a_process_to_itself_is_none_to_the_outside() -> None:
    command = [sys.executable, "-c", TO_ITSELF]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert not speaks_outside(child.pid, [], [])
        child.kill()
