from __future__ import annotations

from pathlib import Path

import pytest

from torchrelay.protocol.journals.journal import JournalWriter, ProgressReader
from torchrelay.protocol.logs.log_lines import LogLines, LogPart
from torchrelay.shim.comm.generations.communicators import Communicators
from torchrelay.shim.observe.device_waits import DeviceWaits


class Device(Communicators):
    def __init__(self) -> None:
        super().__init__(0, 2, "127.0.0.1", LogLines(LogPart.SHIM))
        self.waits = True  # type: ignore[assignment]  # of a device, in place of those of gloo

    def waits_on_device(self) -> bool:
        return bool(self.waits)


@pytest.fixture
def journal(tmp_path: Path) -> JournalWriter:
    return JournalWriter(tmp_path)


def test_a_rank_that_stands_still_while_its_device_waits_waits_for_others(
    journal: JournalWriter, tmp_path: Path
) -> None:
    device = Device()
    watch, reader = DeviceWaits(journal, device), ProgressReader(tmp_path)
    watch.look()
    first = reader.read()
    assert first is not None
    assert first.device_wait_s == 0.0, "it may have moved before this look"
    watch.look()
    second = reader.read()
    assert second is not None
    assert second.device_wait_s > 0.0
    assert second == first, "to wait longer is no progress"
    device.waits = False  # type: ignore[assignment]  # as above
    watch.look()
    third = reader.read()
    assert third is not None
    assert third.device_wait_s == 0.0


def test_a_rank_that_moves_waits_for_nobody_whatever_its_device_does(journal: JournalWriter, tmp_path: Path) -> None:
    watch, reader = DeviceWaits(journal, Device()), ProgressReader(tmp_path)
    for _ in range(4):
        journal.count += 1
        journal.publish()
        watch.look()
        record = reader.read()
        assert record is not None
        assert record.device_wait_s == 0.0


def test_who_waits_on_the_host_says_so_itself(journal: JournalWriter, tmp_path: Path) -> None:
    watch, reader = DeviceWaits(journal, Device()), ProgressReader(tmp_path)
    journal.wait(True)
    journal.publish()
    watch.look()
    watch.look()
    record = reader.read()
    assert record is not None
    assert record.waiting
    assert record.device_wait_s == 0.0
