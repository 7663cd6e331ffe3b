from __future__ import annotations

import pytest
from support import ports


def test_a_port_is_given_once_and_to_one_of_the_processes_that_test(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([61001, 61001, 61003, 61005, 61004])
    monkeypatch.setattr(ports.LocalMachine, "free_port", lambda self: next(found))
    monkeypatch.setattr(ports, "_GIVEN", set())
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "2")
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw1")
    assert [ports.free_port(), ports.free_port()] == [61001, 61003], "nobody listens at the first one yet"
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    assert ports.free_port() == 61004, "the one before may be another process's"
