from __future__ import annotations

import sys

import pytest

from torchrelay.protocol.names import BARS
from torchrelay.shim.observe import origins
from torchrelay.shim.observe.device_holds import DeviceHold, DeviceHolds


@pytest.fixture(autouse=True)
def script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origins, "INSTRUMENTED_FILES", {__file__})


def captured(holds: DeviceHolds, before: int, after: int, *, sends: bool = False) -> list[str]:
    """What is said of a graph that is captured while the libraries count from `before` to `after` collectives."""
    holds.capture_begins(before)
    if sends:
        holds.communicates()
    holds.capture_ends(lambda: after, sys._getframe())
    return [gap.kind for gap in holds.gaps()]


def test_a_graph_that_holds_collectives_bars_every_replacement() -> None:
    holds = DeviceHolds()
    assert captured(holds, 5, 7) == ["device-graph"]
    (gap,) = holds.gaps()
    assert gap.effect == BARS
    assert gap.text.endswith("no rank can be replaced")
    assert "CUDA graph that holds collectives" in gap.text
    assert (gap.file, gap.line > 0) == (__file__, True), "the line that captures it"


def test_a_graph_that_holds_messages_does_too() -> None:
    """Libraries do not count them."""
    assert captured(DeviceHolds(), 5, 5, sends=True) == ["device-graph"]


def test_a_graph_without_communication_is_no_gap() -> None:
    holds = DeviceHolds()
    holds.communicates()  # before it
    assert captured(holds, 5, 5) == []
    holds.capture_ends(lambda: 9, sys._getframe())
    assert len(holds) == 0, "of a capture that has failed nothing is there to end"


@pytest.mark.parametrize("held", list(DeviceHold))
def test_each_kind_is_told_once_with_its_reason(held: DeviceHold) -> None:
    holds = DeviceHolds()
    for _ in range(2):
        holds.tell(held, sys._getframe())
    (gap,) = holds.gaps()
    assert (gap.kind, gap.effect, len(holds)) == (held.value, BARS, 1)
    assert ": no rank can be replaced" in gap.text
