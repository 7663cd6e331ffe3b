"""Carry the state of worker processes that a DataLoader keeps from one epoch to the next (`persistent_workers`).

The workers tell it when an epoch begins, and it is put into the workers of a joiner. torch begins an epoch with a message to every
worker, which sends it back before it does anything else. What is made of the message where it is read (`__reduce__`) looks at the
worker, in its only thread, between two epochs.

Leans on `_utils.worker`: `_ResumeIteration(seed)`, `_worker_loop` with its parameters `init_fn`, `collate_fn` and
`persistent_workers`; on `_MultiProcessingDataLoaderIter`: `_reset(loader, first_iter)`, `_workers`, `_dataset`,
`_persistent_workers`. Seen on torch 2.13.0 and 2.14.1, CPython 3.11. A worker that is not forked imports this module to find what
it is to run.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch.utils import data as torch_data
from torch.utils.data import _utils, dataloader

from torchrelay.shim.capture import rng
from torchrelay.shim.capture.iteration import changed_data, generator_states, marks
from torchrelay.shim.capture.iteration.marks import data_sets
from torchrelay.shim.capture.state.parts import dataset_parts
from torchrelay.shim.capture.values.kinds import Kind, kind_of

MultiIter = dataloader._MultiProcessingDataLoaderIter
_Message = _utils.worker._ResumeIteration


class _Data(NamedTuple):
    """What is state of one data set: plain attributes, and the states of generators."""

    plain: dict[str, Any]
    generators: dict[str, Any]


class _State(NamedTuple):
    rng: rng.RngState
    seed: int
    data: tuple[_Data, ...]
    """The state of the data set and of those below it, in the order of `data_sets`."""
    others: bytes
    """What else the worker has changed in these, and in the script's variables, as `changed_data` writes it."""


# Pickle finds what it calls by a module's name, so what that works with can lie nowhere else.
_begun: changed_data.Marks | None = None
"""In a worker: the marks of what is neither plain nor a generator, when it had begun."""
_parts: changed_data.Parts = {}
"""In a worker: what was told then of parts of its data set."""
_collate: Any = None
"""In a worker: the function that makes batches of items."""
_original_loop = _utils.worker._worker_loop
_PARAMETERS = inspect.signature(_original_loop)
_tokens = itertools.count()
_open: dict[int, tuple[type[Any], dict[int, bytes], Callable[[], None]]] = {}
"""Messages of this process that are under way: the class that each comes back as, what each worker has told, and whom to tell."""


def install() -> None:
    """Let workers note how their data set was when they had begun."""
    if {"init_fn", "collate_fn", "persistent_workers"} <= _PARAMETERS.parameters.keys():
        _utils.worker._worker_loop = worker_loop


def worker_loop(*args: Any, **kwargs: Any) -> None:
    """Run a worker. Found by its name in a process that is not forked."""
    bound = _PARAMETERS.bind(*args, **kwargs)
    if bound.arguments["persistent_workers"]:
        init = bound.arguments["init_fn"]
        collate = bound.arguments["collate_fn"]
        bound.arguments["init_fn"] = functools.partial(_begin, init, collate)
    _original_loop(*bound.args, **bound.kwargs)


def _begin(init_fn: Callable[[int], Any] | None, collate: Any, worker: int) -> None:
    global _begun, _parts, _collate
    if init_fn is not None:
        init_fn(worker)
    info = torch_data.get_worker_info()
    _collate = collate
    _begun = _mark(info)
    _parts = changed_data.told_of_parts(_begun or {})


def _mark(info: Any) -> changed_data.Marks | None:
    if info is None or info.dataset is None:
        return None
    found = marks.of_attributes(info.dataset, _collate)
    return None if found is None else {**found, **marks.of_variables(data_sets(info.dataset))}


def are_seen(iterator: Any) -> bool:
    """Return whether these worker processes are kept, and tell their state."""
    is_kept = isinstance(iterator, MultiIter) and iterator._persistent_workers
    return is_kept and not isinstance(iterator._dataset, torch_data.IterDataPipe)


def begin_epoch(
    iterator: Any, reset: Callable[[], None], states: Sequence[bytes] | None, has_answered: Callable[[], None]
) -> tuple[tuple[bytes, ...], bool]:
    """Call `reset`, which begins an epoch of `iterator`. `states`: put into the workers before.

    `has_answered`: called when a worker has answered, which waits for its first task of the epoch then, as do those before it.

    Returns how each worker was then, and whether that is all of its state.
    """
    token = next(_tokens)
    here = marks.of_plain_variables()
    told = dict[int, bytes]()

    class Message(_Message):
        def __reduce__(self) -> Any:
            return _in_worker, (self.seed, token, states, here)

    _open[token] = Message, told, has_answered
    setattr(_utils.worker, "_ResumeIteration", Message)  # noqa: B010 - mypy forbids the assignment
    try:
        reset()
    finally:
        setattr(_utils.worker, "_ResumeIteration", _Message)  # noqa: B010 - the same
        del _open[token]
    found = tuple(told.get(number, b"") for number in range(len(iterator._workers)))
    return found, all(found)


class _Answer(_Message):
    """The message in the worker, on its way back."""

    def __reduce__(self) -> Any:
        return _in_trainer, self.__dict__["told"]


def _in_worker(seed: Any, token: int, states: Sequence[bytes] | None, here: dict[marks.Where, bytes]) -> _Answer:
    info = torch_data.get_worker_info()
    if states is not None and info is not None:
        _put(info, pickle.loads(states[info.id]))
    answer = _Answer(seed)
    answer.__dict__["told"] = seed, token, getattr(info, "id", 0), _take(info, here)
    return answer


def _in_trainer(seed: Any, token: int, worker: int, state: bytes) -> Any:
    message, told, has_answered = _open[token]
    told[worker] = state
    has_answered()
    return message(seed)


def _take(info: Any, of_trainer: dict[marks.Where, bytes]) -> bytes:
    """Return the worker's state; empty if it has more than can be carried.

    `of_trainer`: digests of the variables of the training process, whose further workers would begin with these.
    """
    now = _mark(info)
    if _begun is None or now is None:
        return b""
    owners = data_sets(info.dataset)
    own = marks.of_plain_variables()
    unlike = [where for where, value in of_trainer.items() if own.get(where, value) != value]
    others = changed_data.write(owners, _begun, now, unlike, _parts)
    if others is None:
        return b""
    data = []
    for owner in owners:
        plain, below = dataset_parts(owner)
        states = {
            name: generator_states.state_of(v) for name, v in below.items() if kind_of(type(v)) is not Kind.DATASET
        }
        data.append(_Data(plain, states))
    return pickle.dumps(_State(rng.capture(), info.seed, tuple(data), others), pickle.HIGHEST_PROTOCOL)


def _put(info: Any, state: _State) -> None:
    rng.restore(state.rng)
    object.__setattr__(info, "seed", state.seed)
    owners = data_sets(info.dataset)
    if state.others and _begun is not None:
        changed_data.put(state.others, owners, _begun)
    for owner, (plain, generators) in zip(owners, state.data):
        for name in dataset_parts(owner)[0].keys() - plain.keys():
            object.__delattr__(owner, name)
        for name, value in plain.items():
            object.__setattr__(owner, name, value)
        for name, value in generators.items():
            generator_states.put(getattr(owner, name), value)
