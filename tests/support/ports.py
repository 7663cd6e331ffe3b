"""Ports for what starts later and is told its port before."""

from __future__ import annotations

import os

from torchrelay.cli.machine import LocalMachine

_GIVEN: set[int] = set()


def free_port() -> int:
    """None that the kernel gives away itself: a test that runs beside could have it before who it is for listens there.

    For the same reason none is given twice, and of several processes that test each has ports of its own.
    """
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % processes
    while True:
        port = LocalMachine().free_port()
        if port not in _GIVEN and port % processes == own:
            _GIVEN.add(port)
            return port
