"""The store at MASTER_ADDR in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist
from support.forked import forked

from tests.support.ports import free_port
from torchrelay.protocol.launch_env import USE_AGENT_STORE
from torchrelay.shim.adapters.process_groups import agent_store

PATIENCE = timedelta(seconds=20)


@pytest.fixture
def agent() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def environment(rank: int) -> dict[str, str]:
    return {"RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), USE_AGENT_STORE: "False"}


def in_a_rank_that_ends(environ: dict[str, str], agent_pid: int) -> None:
    def host() -> None:
        agent_store.use(environ, agent_pid)
        assert environ[USE_AGENT_STORE] == "True"

    assert os.waitpid(forked(host), 0)[1] == 0


def test_the_store_outlives_rank_0_and_ends_with_the_agent(agent: subprocess.Popen[bytes]) -> None:
    environ = environment(0)
    port = int(environ["MASTER_PORT"])
    in_a_rank_that_ends(environ, agent.pid)
    client = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=PATIENCE, wait_for_workers=False)
    client.set("loss", "3")

    taking_over = {**environ, USE_AGENT_STORE: "False"}
    agent_store.use(taking_over, agent.pid)
    assert taking_over[USE_AGENT_STORE] == "True"
    arguments = {"host_name": "127.0.0.1", "port": port, "world_size": 2, "timeout": PATIENCE}
    assert agent_store.connects_to_it(taking_over, (), arguments)
    own = dist.TCPStore.__new__(dist.TCPStore)
    agent_store.connect_uncounted(dist.TCPStore.__init__, own, (), arguments)
    assert own.get("loss") == b"3"
    default = agent_store.of_default_group(taking_over)
    assert default is not None
    default.set("loss", "4")
    assert client.get("default_pg/loss") == b"4"

    with socket.create_connection(("127.0.0.1", port), PATIENCE.total_seconds()) as open_until_the_end:
        agent.kill()
        assert open_until_the_end.recv(1) == b""
    assert agent_store.of_default_group(taking_over) is None
    assert not agent_store.connects_to_it(taking_over, (), arguments)


def test_who_takes_over_rank_0_serves_none_on_its_own_machine(agent: subprocess.Popen[bytes]) -> None:
    environ = environment(0)
    agent_store.use(environ, agent.pid, joins=True)
    assert environ[USE_AGENT_STORE] == "True"
    with socket.create_server(("127.0.0.1", int(environ["MASTER_PORT"]))):
        pass  # nobody has the port


def test_a_name_that_somebody_else_has_taken_is_no_store(agent: subprocess.Popen[bytes]) -> None:
    environ = environment(0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as taken:
        taken.bind(f"\0torchrelay-store-{agent.pid}-{environ['MASTER_PORT']}")
        agent_store.use(environ, agent.pid)
    assert environ[USE_AGENT_STORE] == "False"


def test_its_connections_are_told_from_others(agent: subprocess.Popen[bytes]) -> None:
    environ = environment(0)
    agent_store.use(environ, agent.pid)
    before = agent_store.connections(environ)
    other = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = agent_store.of_default_group(environ)
    assert client is not None
    assert len(agent_store.connections(environ) - before) == 1
    assert not agent_store.connections({**environ, USE_AGENT_STORE: "False"})
    del other


def test_rank_0_hosts_it_where_something_else_has_the_port(agent: subprocess.Popen[bytes]) -> None:
    environ = environment(0)
    with socket.create_server(("127.0.0.1", int(environ["MASTER_PORT"]))):
        agent_store.use(environ, agent.pid)
    assert environ[USE_AGENT_STORE] == "False"


def test_a_rank_that_serves_its_own_store_is_no_client(agent: subprocess.Popen[bytes]) -> None:
    environ = environment(1)
    agent_store.use(environ, agent.pid)
    assert environ[USE_AGENT_STORE] == "True"
    port = int(environ["MASTER_PORT"])
    assert not agent_store.connects_to_it(environ, ("127.0.0.1", port, None, True), {})
    assert not agent_store.connects_to_it(environ, ("127.0.0.1", port + 1), {})
