"""torchtitan's batches come from a generator, which is suspended in its loop: its place, taken down and put back.

Its iterations are all alike: one draws from the loader's iterator, counts tokens on the trainer, and yields. So nothing of it
is recorded: after a rewind the loader's iterator yields again what it had yielded, and the generator's own code counts again.
Leans on `Trainer.batch_generator` of torchtitan.train: its local variables, its single `yield`, and what it asks of a batch and
of the trainer. Seen on torchtitan 0.2.2; another one is left as it is, and named in the protection report.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import GeneratorType, SimpleNamespace
from typing import Any

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.cpython import frames
from torchrelay.shim.capture.values.replay_point import ReplayPoint
from torchrelay.shim.script import sites

_LOCALS = frozenset(
    {
        "self",
        "data_iterable",
        "data_iterator",
        "data_load_start",
        "batch",
        "ex",
        "input_dict",
        "labels",
        "ntokens_batch",
    }
)
Function = Callable[..., "GeneratorType[Any, None, None]"]


def batches(function: Function, trainer: Any, data_iterable: Any) -> Iterator[Any]:
    if not _is_known(function):
        sites.LEFT_ALONE[function.__code__.co_filename] = "its batches come from a generator that is not known"
        return function(trainer, data_iterable)
    return TitanBatches(function, trainer, data_iterable)


def _is_known(function: Function) -> bool:
    code = function.__code__
    return inspect.isgeneratorfunction(function) and frozenset(code.co_varnames) == _LOCALS


def _led(function: Function) -> GeneratorType[Any, None, None]:
    """Return a new generator that stands in its `yield`, for a trainer and a batch of no consequence."""
    counters = SimpleNamespace(ntokens_since_last_log=0, data_loading_times=[])
    generator = function(SimpleNamespace(ntokens_seen=0, metrics_processor=counters), [({}, torch.empty(0))])
    next(generator)
    return generator


class TitanBatches(ReplayPoint):
    def __init__(self, function: Function, trainer: Any, data_iterable: Any) -> None:
        self._function = function
        self._trainer = trainer
        self._data = data_iterable
        self._generator = function(trainer, data_iterable)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._generator.send(None)

    def close(self) -> None:
        self._generator.close()

    def place(self) -> dict[str, Any]:
        state = inspect.getgeneratorstate(self._generator)
        found: dict[str, Any] = {"data": self._data, "at": state, "iterator": None}
        if state == inspect.GEN_SUSPENDED:
            frame = self._generator.gi_frame
            assert frame is not None
            found["iterator"] = frame.f_locals["data_iterator"]
        return found

    def begin_again(self, boundary: int) -> bool:
        return False  # no draw of it is ever recorded

    def go_to(self, place: dict[str, Any], last: Any) -> None:
        at = place["at"]
        if at == inspect.GEN_CREATED:
            self._generator = self._function(self._trainer, self._data)
        elif at != inspect.GEN_SUSPENDED:
            self._generator.close()
        elif place.get("iterator") is None:
            raise StateMismatchError("torchtitan's batches come from an iterator that is not here")
        else:
            self._generator = _led(self._function)
            values = {"self": self._trainer, "data_iterable": self._data, "data_iterator": place["iterator"]}
            frame = self._generator.gi_frame
            assert frame is not None
            frames.set_locals(frame, values)
