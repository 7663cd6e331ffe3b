from __future__ import annotations

import os

from torchrelay.agent.health.probes.probe import Orders


def test_whole_lines_are_orders() -> None:
    reading, writing = os.pipe()
    orders = Orders(reading)
    assert orders.read() == []
    os.write(writing, b'{"GPU-0": {}}\n{"GPU-1": {"a": 1.0}}\n{"GPU-2"')
    assert orders.read() == [{"GPU-0": {}}, {"GPU-1": {"a": 1.0}}]
    os.write(writing, b": {}}\n")
    assert orders.read() == [{"GPU-2": {}}]
    os.close(writing)
    assert orders.read() == []
    os.close(reading)
    assert orders.read() == [], "a file that has ended is not asked again"
