"""Ports for what starts later and is told its port before."""

from __future__ import annotations

from torchrelay.cli.machine import LocalMachine


def free_port() -> int:
    """None that the kernel gives away itself: a test that runs beside could have it before who it is for listens there."""
    return LocalMachine().free_port()
