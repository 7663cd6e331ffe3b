"""A generator with the shape of torchtitan 0.2.2's."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.instrument import titan

Batch = tuple[dict[str, Any], torch.Tensor]


def batch_generator(self: Any, data_iterable: Any) -> Iterator[Batch]:
    data_iterator = iter(data_iterable)
    while True:
        data_load_start = 0.0
        try:
            batch = next(data_iterator)
        except StopIteration as ex:
            raise ValueError("exhausted") from ex
        input_dict, labels = batch
        ntokens_batch = labels.numel()
        self.ntokens_seen += ntokens_batch
        self.metrics_processor.ntokens_since_last_log += ntokens_batch
        self.metrics_processor.data_loading_times.append(data_load_start)
        yield input_dict, labels


def another_generator(self: Any, data_iterable: Any) -> Iterator[Any]:
    yield from data_iterable


def trainer() -> Any:
    counters = SimpleNamespace(ntokens_since_last_log=0, data_loading_times=[])
    return SimpleNamespace(ntokens_seen=0, metrics_processor=counters)


def data(count: int = 5) -> list[Batch]:
    return [({"input": i}, torch.zeros(3)) for i in range(count)]


def drawn(batches: Any) -> int:
    return int(next(batches)[0]["input"])


def test_a_new_process_goes_on_where_the_recorded_iterator_stands() -> None:
    lost = titan.batches(batch_generator, trainer(), data())
    assert [drawn(lost), drawn(lost)] == [0, 1]
    assert isinstance(lost, titan.TitanBatches)
    place = lost.place()
    assert (place["at"], next(place["iterator"])[0]["input"]) == ("GEN_SUSPENDED", 2)
    there = trainer()
    joiner = titan.batches(batch_generator, there, data())
    assert isinstance(joiner, titan.TitanBatches)
    joiner.go_to({**place, "iterator": iter(data()[3:])}, None)
    assert there.ntokens_seen == 0
    assert drawn(joiner) == 3
    assert there.ntokens_seen == 3


def test_a_generator_that_has_not_begun_begins_there_too() -> None:
    joiner = titan.batches(batch_generator, trainer(), data())
    assert isinstance(joiner, titan.TitanBatches)
    place = joiner.place()
    drawn(joiner)
    joiner.go_to(place, None)
    assert drawn(joiner) == 0


def test_without_the_loaders_iterator_there_is_no_going_on() -> None:
    batches = titan.batches(batch_generator, trainer(), data())
    assert isinstance(batches, titan.TitanBatches)
    with pytest.raises(StateMismatchError, match="iterator that is not here"):
        batches.go_to({"at": "GEN_SUSPENDED", "iterator": None}, None)


def test_another_generator_than_the_known_one_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(titan.sites, "LEFT_ALONE", {})
    assert not isinstance(titan.batches(another_generator, trainer(), data()), titan.TitanBatches)
    assert list(titan.sites.LEFT_ALONE) == [__file__]


def test_torchtitans_own_generator_is_the_known_one() -> None:
    train = pytest.importorskip("torchtitan.train")
    function = train.Trainer.batch_generator
    assert titan._is_known(getattr(function, "__wrapped__", function))
