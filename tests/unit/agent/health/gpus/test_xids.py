from __future__ import annotations

import asyncio

import pytest

from torchrelay.agent.health.gpus import xids
from torchrelay.agent.health.gpus.xids import XidMerger
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.messages import HealthSignal

EVENT = HealthSignal(k.XID, "GPU-a", code=74)
LINE = HealthSignal(k.XID, "GPU-a", code=74, detail="link 2(0x10000)")


@pytest.fixture(autouse=True)
def _short_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xids, "HOLD_S", 0.02)


async def after_the_hold() -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, over.set)
    await over.wait()


@pytest.mark.parametrize("line_first", [True, False])
def test_event_and_line_are_one_with_the_details_of_the_line(line_first: bool) -> None:
    async def scenario() -> list[HealthSignal]:
        told: list[HealthSignal] = []
        merger = XidMerger(told.append)
        merger.has_kernel_log = True
        if line_first:
            merger.from_kernel(LINE)
        merger.from_driver(EVENT)
        if not line_first:
            merger.from_kernel(LINE)
        await after_the_hold()
        return told

    assert asyncio.run(scenario()) == [LINE]


def test_an_event_whose_line_does_not_come_is_told_after_the_hold() -> None:
    async def scenario() -> tuple[list[HealthSignal], list[HealthSignal]]:
        told: list[HealthSignal] = []
        merger = XidMerger(told.append)
        merger.has_kernel_log = True
        merger.from_driver(EVENT)
        before = list(told)
        await after_the_hold()
        return before, told

    assert asyncio.run(scenario()) == ([], [EVENT])


def test_without_a_kernel_log_an_event_is_told_at_once() -> None:
    async def scenario() -> list[HealthSignal]:
        told: list[HealthSignal] = []
        XidMerger(told.append).from_driver(EVENT)
        return told

    assert asyncio.run(scenario()) == [EVENT]
