"""What a worker has changed in its data set, written for the worker of another process. See test_kept_workers for both together."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset

from torchrelay.shim.capture.iteration import changed_data, marks


class Data(Dataset[Any]):
    def __init__(self) -> None:
        self.rows = torch.arange(12.0).reshape(4, 3)
        self.names = [["a"], ["b"]]
        self.tags = {("x", "y"), ("z", "w")}
        self.cache: list[Any] = []
        self.until_used: Any = object
        self.part: Any = None


def looked_at(data: Data) -> dict[marks.Where, marks.Mark]:
    found = marks.of_attributes(data, None)
    assert found is not None
    return found


def carry(old: Data, begun: dict[marks.Where, marks.Mark]) -> Data | None:
    written = changed_data.write([old], begun, looked_at(old))
    if written is None:
        return None
    new = Data()
    if written:
        changed_data.put(written, [new], looked_at(new))
    return new


def test_nothing_is_written_of_a_data_set_that_is_as_it_was() -> None:
    data = Data()
    begun = looked_at(data)
    assert changed_data.write([data], begun, looked_at(data)) == b""


def test_what_was_there_is_the_same_object_in_the_new_worker_and_views_look_into_its_memory() -> None:
    data = Data()
    begun = looked_at(data)
    data.cache += [data.names[1], data.rows[2, 1:], torch.ones(2), data]
    del data.until_used
    new = carry(data, begun)
    assert new is not None
    name, row, own, itself = new.cache
    assert name is new.names[1]
    assert row.data_ptr() == new.rows[2, 1:].data_ptr()
    assert row.tolist() == [7, 8]
    assert own.tolist() == [1, 1]
    assert itself is new
    assert not hasattr(new, "until_used")


def test_changes_that_are_too_large_are_not_carried() -> None:
    data = Data()
    begun = looked_at(data)
    data.cache.append(torch.zeros(changed_data.MOST_BYTES // 4 + 1))
    assert carry(data, begun) is None


def test_nor_are_those_that_lead_to_parts_of_what_has_no_order() -> None:
    data = Data()
    begun = looked_at(data)
    data.cache.append(next(iter(data.tags)))
    assert carry(data, begun) is None


def test_nor_is_a_collate_function_that_has_changed() -> None:
    data, collate = Data(), {"calls": [0]}
    before = marks.of_attributes(data, collate)
    collate["calls"][0] += 1
    after = marks.of_attributes(data, collate)
    assert before is not None
    assert after is not None
    assert changed_data.write([data], before, after) is None
