"""The script's collectives, seen from Python: recorded, answered from a recording, or repeated on a new generation.

Before the training loop and before the gate results are recorded, so that a joiner's set-up and shadow step can be answered
without peers. After the gate an interrupted collective is repeated once the new generation stands.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist

from torchrelay.shim.capture.values.by_identity import ByIdentity
from torchrelay.shim.comm.collective_call import CollectiveCall, group_name
from torchrelay.shim.comm.collective_mode import CollectiveMode
from torchrelay.shim.comm.confirmed_results import ConfirmingEngine, communicating
from torchrelay.shim.comm.finished import FinishedCollective
from torchrelay.shim.script.completed_collective import CompletedCollective
from torchrelay.shim.script.guard import Guard, is_called_by

SUMS_UP = frozenset({"all_reduce", "reduce"})
"""Collectives whose result in place depends on what was there."""

_TENSOR_OUT: dict[str, tuple[str, int]] = {
    "all_reduce": ("tensor", 0),
    "broadcast": ("tensor", 0),
    "reduce": ("tensor", 0),
    "all_gather": ("tensor_list", 0),
    "all_gather_into_tensor": ("output_tensor", 0),
    "reduce_scatter": ("output", 0),
    "reduce_scatter_tensor": ("output", 0),
    "gather": ("gather_list", 1),
    "scatter": ("tensor", 0),
    "all_reduce_coalesced": ("tensors", 0),
    "all_gather_coalesced": ("output_tensor_lists", 0),
    "all_gather_single": ("output_tensor", 0),
    "reduce_scatter_single": ("output", 0),
    "all_to_all": ("output_tensor_list", 0),
    "all_to_all_single": ("output", 0),
    "barrier": ("", -1),
    "monitored_barrier": ("", -1),
    "_verify_params_across_processes": ("", -1),
    "_broadcast_coalesced": ("tensors", 1),
}
"""The last two are what the constructor of a data parallel wrapper calls."""
OF_WRAPPERS_MAKING = "_broadcast_coalesced"
_OBJECTS_OUT: dict[str, tuple[str, int]] = {
    "all_gather_object": ("object_list", 0),
    "broadcast_object_list": ("object_list", 0),
    "gather_object": ("object_gather_list", 1),
    "scatter_object_list": ("scatter_object_output_list", 0),
}
FUNCTIONS = (*_TENSOR_OUT, *_OBJECTS_OUT)
_OF_WRAPPERS = ("torch.distributed.fsdp.", "torch.distributed.optim.", "torch.distributed.tensor.")
"""Modules of torch whose collectives carry parameters, gradients and optimizer state, and are no business of the script's."""
NEW_GROUP = "new_group"
DEFAULT_GROUP = "init_process_group"
SAVE_RESULT = "async_save.result"
"""Waiting for a save that a thread does: it is over for all ranks or for none."""
SAME_ON_ALL_RANKS = frozenset(
    {"all_reduce", "broadcast", "all_gather", "all_gather_into_tensor", "barrier", "monitored_barrier"}
    | {"_verify_params_across_processes", "_broadcast_coalesced"}
    | {
        "all_gather_object",
        "broadcast_object_list",
        "all_reduce_coalesced",
        "all_gather_coalesced",
        "all_gather_single",
    }
    | {
        f"ProcessGroup.{name}"
        for name in ("allreduce", "allreduce_coalesced", "broadcast", "barrier", "monitored_barrier")
    }
    | {f"ProcessGroup.{name}" for name in ("allgather", "_allgather_base", "allgather_coalesced", "all_gather_single")}
    | {"ProcessGroup.allgather_into_tensor_coalesced", "ProcessGroup.all_gather_single_coalesced"}
    | {SAVE_RESULT, NEW_GROUP, DEFAULT_GROUP}
    | {"functional.all_reduce", "functional.broadcast", "functional.all_gather_single", "functional.all_gather_tensor"}
)
"""Their results can be taken from any rank's record."""


class CollectiveEngine(ConfirmingEngine, Protocol):
    """What a collective needs to know from the engine of this process."""

    guard: Guard

    def mode(self) -> CollectiveMode:
        """Return how a collective is done that begins now. Changes nothing."""
        ...

    def communication_begins(self) -> None:
        """Note that the training thread is about to communicate, by the script or for it."""
        ...

    def collective_begins(self) -> None:
        """Note that the training thread is about to call a collective of the script's own."""
        ...

    def caught_up(self, group: str) -> bool:
        """Return whether a joiner has come to where its peers are, so that this collective is done with them."""
        ...

    def answer(self, name: str, group: str, *, without_result: bool = False) -> FinishedCollective: ...
    def record(self, entry: FinishedCollective) -> None: ...
    def before_first_gate(self) -> bool:
        """Return whether this is set-up, or lies between set-up and the first update: a new process goes through all of that."""
        ...

    def completed(self, entry: FinishedCollective, now: FinishedCollective) -> None:
        """Note that an entry that was recorded when it was called has its result by now."""
        ...

    def interrupted(self, error: RuntimeError) -> None:
        """Return if the collective is to be called again; raise Rewind or the error otherwise."""
        ...

    def interrupted_for_good(self, error: RuntimeError) -> None:
        """Handle the failure of a call that cannot be made again. Never returns."""
        ...

    def replayed(self, name: str, group: str, *, without_result: bool = False) -> FinishedCollective | None: ...
    def sharded_alone(self) -> None:
        """Note a sharded model's own collective where there are no peers. Raises StateMismatchError where its result is needed."""
        ...

    def sharded_after_step(self) -> None:
        """Note a sharded model's own collective among peers, after the optimizer step."""
        ...

    def own_result_late(self, name: str) -> None:
        """Report a communication after the optimizer step whose result other ranks do not have."""
        ...

    def begun_aside(self, work: Any) -> None:
        """Note what was begun with `async_op` before the update."""
        ...

    def waited_for(self, work: Any) -> None: ...
    def on_training_thread(self) -> bool: ...
    def beside(self, call: Callable[[], Any]) -> Any:
        """Call a collective on another thread. Raises UnsupportedError where a migration has come between."""
        ...

    def waits_beside(self, wait: Callable[[], Any]) -> Any:
        """Wait, on another thread, for what was called there."""
        ...

    def answered(self, tensors: list[torch.Tensor]) -> None:
        """Note that a recorded result was put into these tensors."""
        ...

    def summed_up(self, tensors: list[torch.Tensor]) -> None:
        """Note that what these tensors hold depends on what they held before, and that torch has not counted a write."""
        ...


class Collectives:
    def __init__(self, engine: CollectiveEngine) -> None:
        self._engine = engine
        self.guard = engine.guard
        self._inside = False
        self._together: list[CollectiveCall] | None = None
        self._open: ByIdentity[tuple[FinishedCollective, CollectiveCall]] = ByIdentity()
        """What was called with `async_op` before the first gate and not waited for yet, by what it waits for."""

    @property
    def inside(self) -> bool:
        """Return whether what is called now is part of a communication that is seen as a whole, or left alone."""
        return self._inside

    @contextmanager
    def left_alone(self) -> Iterator[None]:
        """Do what is called within as it is: communication of a backward, which is not the script's own."""
        before = self._inside
        self._inside = True
        try:
            yield
        finally:
            self._inside = before

    def sees_calls(self) -> bool:
        """Return whether a call that is made here is the script's own, in a job that is protected."""
        return self._engine.on_training_thread() and not self._inside and self._engine.mode() != "off"

    def communication_begins(self) -> None:
        """Note that a group's own method is about to send or receive a message."""
        self._engine.communication_begins()

    def is_answering(self) -> bool:
        return self._engine.mode() == "answer"

    def is_late(self) -> bool:
        """Return whether the gate is passed: what is called now is repeated where it is interrupted."""
        return self._engine.mode() == "repeat"

    def call(self, call: CollectiveCall) -> Any:
        """Call a collective of the script."""
        self._engine.collective_begins()
        return self._run(call, self._engine.mode(), asynchronous=False)

    def received(self, work: Any) -> CompletedCollective:
        """Wait for what a group's own method has asked for behind the gate: no process can call it again."""
        try:
            with self.left_alone(), communicating(self._engine, confirmed=True):
                work.wait()
        except RuntimeError as error:
            self._engine.interrupted_for_good(error)
            raise
        return CompletedCollective()

    @contextmanager
    def together(self, *, asynchronous: bool) -> Iterator[None]:
        """Record what is called within when the context is left, where its results are there.

        `asynchronous`: before the gate, its results come still later, and are not recorded. Behind the gate all results are there
        where the context is left, and nothing is repeated: no process can call again what was called within.
        """
        engine = self._engine
        together: list[CollectiveCall] = []
        self._together = together
        try:
            yield
            is_late = self.is_late()
            is_there = is_late or not asynchronous
            if together and is_there:
                with communicating(engine, confirmed=True):
                    pass
        except RuntimeError as error:
            engine.interrupted_for_good(error)
            raise
        finally:
            self._together = None
        for call in together:
            if is_there:
                engine.record(call.take(for_others=is_late and call.name in SAME_ON_ALL_RANKS))
            else:
                engine.record(FinishedCollective(call.name, call.group, None))

    def handlers(self) -> dict[str, Callable[..., Any]]:
        """Return what is done in place of each function of torch.distributed: it is called with the plain one and its arguments."""
        tensors = {name: self._handler(name, *out, objects=False) for name, out in _TENSOR_OUT.items()}
        return tensors | {name: self._handler(name, *out, objects=True) for name, out in _OBJECTS_OUT.items()}

    def wrap_wait(self) -> None:
        """Watch the waits for what was called with `async_op`: fully_shard gathers so, and would seem to compute."""
        original = dist.Work.wait

        def wait(plain: Callable[..., Any], work: Any, *args: Any, **kwargs: Any) -> Any:
            engine = self._engine
            if not engine.on_training_thread():
                return engine.waits_beside(functools.partial(plain, work, *args, **kwargs))
            if self._inside or engine.mode() == "off":
                return plain(work, *args, **kwargs)
            with communicating(engine, confirmed=self._open.has(work)):
                result = plain(work, *args, **kwargs)
            self._complete(work)
            return result

        wrapper = functools.wraps(original)(self._engine.guard.entry(original, wait))
        setattr(dist.Work, "wait", wrapper)  # noqa: B010 - mypy forbids the assignment

    def _complete(self, work: Any) -> None:
        self._engine.waited_for(work)
        found = self._open.get(work)
        if found is not None:
            self._open.pop(work)
            entry, call = found
            self._engine.completed(entry, call.take())

    def _handler(self, name: str, parameter: str, place: int, *, objects: bool) -> Callable[..., Any]:
        def ours(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if not self._engine.on_training_thread():
                return self._engine.beside(functools.partial(plain, *args, **kwargs))
            if self._inside or (mode := self._engine.mode()) == "off":
                return plain(*args, **kwargs)
            out = kwargs.get(parameter, args[place] if 0 <= place < len(args) else None)
            call = CollectiveCall(
                name, group_name(args, kwargs), functools.partial(plain, *args, **kwargs), out, objects
            )
            if is_called_by(sys._getframe(1), *_OF_WRAPPERS):
                self._engine.communication_begins()
                return self._of_wrapper(call, mode)
            self._engine.collective_begins()
            return self._run(call, mode, asynchronous=bool(kwargs.get("async_op")))

        return ours

    def _run(self, call: CollectiveCall, mode: str, *, asynchronous: bool) -> Any:
        engine = self._engine
        if mode == "answer" and engine.caught_up(call.group):
            mode = engine.mode()
        if mode == "answer":
            self._put(call, engine.answer(call.name, call.group, without_result=call.without_result()))
            return CompletedCollective() if asynchronous else None
        if call.name in SUMS_UP:
            engine.summed_up(call.tensors())
        if self._together is not None:
            return self._joined(call, self._together, mode)
        if mode == "record" and asynchronous:
            entry = FinishedCollective(call.name, call.group, None)
            engine.record(entry)
            work = self._guarded(call)
            if work is not None:
                engine.begun_aside(work)
            if work is not None and engine.before_first_gate():
                self._open.put(work, (entry, call))
            return work
        if mode == "repeat":
            return self._repeat(call, asynchronous=asynchronous)
        result = self._guarded(call, confirmed=True)
        engine.record(call.take())
        return result

    def _joined(self, call: CollectiveCall, together: list[CollectiveCall], mode: str) -> Any:
        """Call one of several collectives that are done together."""
        if mode == "repeat":
            if call.name not in SAME_ON_ALL_RANKS:
                self._engine.own_result_late(call.name)
            entry = self._engine.replayed(call.name, call.group, without_result=call.without_result())
            if entry is not None:
                self._put(call, entry)
                self._engine.record(entry)
                return None
        together.append(call)
        return self._original(call)

    def _put(self, call: CollectiveCall, entry: FinishedCollective) -> None:
        written = call.put(entry)
        if written:
            self._engine.answered(written)

    def _of_wrapper(self, call: CollectiveCall, mode: str) -> Any:
        """Move parameters or gradients: they are far too large to record, and without peers their content does not matter."""
        if mode == "answer":
            self._engine.sharded_alone()
            return self._original(call)
        if mode == "repeat":
            self._engine.sharded_after_step()
        return self._guarded(call)

    def _guarded(self, call: CollectiveCall, *, confirmed: bool = False) -> Any:
        """Call the original; a broken generation takes the rank back to its boundary. `confirmed`: as for `_original`."""
        while True:
            try:
                return self._original(call, confirmed=confirmed)
            except RuntimeError as error:
                self._engine.interrupted(error)

    def _original(self, call: CollectiveCall, *, confirmed: bool = False) -> Any:
        """Call the original. `confirmed`: as in `communicating`."""
        self._inside = True
        try:
            with communicating(self._engine, confirmed=confirmed):
                result = call.function()
                if confirmed and result is not None and hasattr(result, "wait"):
                    result.wait()
                return result
        finally:
            self._inside = False

    def _repeat(self, call: CollectiveCall, *, asynchronous: bool) -> Any:
        if call.name not in SAME_ON_ALL_RANKS:
            self._engine.own_result_late(call.name)
        before = call.inputs()
        while True:
            entry = self._engine.replayed(call.name, call.group, without_result=call.without_result())
            if entry is not None:
                self._put(call, entry)
                self._engine.record(entry)
                return CompletedCollective() if asynchronous else None
            try:
                result = self._original(call, confirmed=True)
            except RuntimeError as error:
                call.put_back(before)  # first of all: a joiner may be given these tensors
                self._engine.interrupted(error)
                continue
            self._engine.record(call.take(for_others=call.name in SAME_ON_ALL_RANKS, before=before))
            return result
