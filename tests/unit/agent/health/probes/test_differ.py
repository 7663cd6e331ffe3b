from __future__ import annotations

from torchrelay.agent.health.probes.differ import Differ
from torchrelay.protocol.health import kinds as k


def told(differ: Differ, **reading: float | None) -> dict[str, float]:
    names = {"ecc": k.ECC_CORRECTED, "margin": k.TEMPERATURE_MARGIN, "pending": k.REMAP_PENDING, "width": k.PCIE_WIDTH}
    return {s.kind: s.value for s in differ.update("GPU-a", {names[n]: v for n, v in reading.items()})}


def test_a_counter_tells_by_how_much_it_moved() -> None:
    differ = Differ()
    assert told(differ, ecc=500) == {}, "what was counted before the job is not the job's"
    assert told(differ, ecc=503) == {k.ECC_CORRECTED: 3}
    assert told(differ, ecc=503) == {}


def test_a_counter_that_was_reset_counts_from_zero() -> None:
    differ = Differ()
    told(differ, ecc=500)
    assert told(differ, ecc=2) == {k.ECC_CORRECTED: 2}


def test_a_level_is_told_when_it_changes() -> None:
    differ = Differ()
    assert told(differ, pending=0, width=1.0) == {}
    assert told(differ, pending=1, width=0.5) == {k.REMAP_PENDING: 1, k.PCIE_WIDTH: 0.5}
    assert told(differ, pending=1, width=0.5) == {}
    assert told(differ, pending=0, width=1.0) == {k.REMAP_PENDING: 0, k.PCIE_WIDTH: 1.0}


def test_temperatures_far_from_the_limit_are_not_told() -> None:
    differ = Differ()
    assert [told(differ, margin=m) for m in (45, 30, 21, 40)] == [{}] * 4
    assert told(differ, margin=9) == {k.TEMPERATURE_MARGIN: 9}
    assert told(differ, margin=9.5) == {}
    assert told(differ, margin=45) == {k.TEMPERATURE_MARGIN: 20}, "that it is over has to be told"
    assert told(differ, margin=50) == {}


def test_what_a_device_does_not_tell_is_left_out() -> None:
    differ = Differ()
    assert told(differ, ecc=None, pending=None) == {}


def test_devices_are_told_apart() -> None:
    differ = Differ()
    differ.update("GPU-a", {k.ECC_CORRECTED: 10})
    assert differ.update("GPU-b", {k.ECC_CORRECTED: 20}) == []
