"""Messages between two ranks of the script's own (`send`, `recv`, `isend`, `irecv`, objects, batches of them).

Before the gate they are recorded and answered as collectives are. After it they are refused wherever a rank is lost: nobody
but the lost rank knows what it had received, and whether a broken message has arrived the sender cannot tell.
"""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from torchrelay.protocol.errors import StateMismatchError, UnsupportedError
from torchrelay.shim.capture.values import small
from torchrelay.shim.comm.collective_call import group_name
from torchrelay.shim.comm.collective_mode import CollectiveMode
from torchrelay.shim.comm.collectives import Collectives
from torchrelay.shim.comm.confirmed_results import ConfirmingEngine, communicating
from torchrelay.shim.comm.finished import MAX_RECORDED_BYTES, FinishedCollective
from torchrelay.shim.script.completed_collective import CompletedCollective
from torchrelay.shim.script.guard import Guard, is_called_by

_SENDS = ("send", "isend", "send_object_list")
_RECEIVES = ("recv", "irecv", "recv_object_list")
_RECEIVED_AT_ONCE = ("recv", "recv_object_list")
_BATCH = "batch_isend_irecv"
FUNCTIONS = (*_SENDS, *_RECEIVES, _BATCH)
_PIPELINES = "torch.distributed.pipelining."
"""Whose messages belong to a schedule's step: see adapters.pipelining."""


class MessageEngine(ConfirmingEngine, Protocol):
    """What a message needs to know from the engine of this process, beside what a collective does."""

    guard: Guard

    def mode(self) -> CollectiveMode: ...
    def communication_begins(self) -> None: ...
    def answer(self, name: str, group: str) -> FinishedCollective: ...
    def behind_gate(self) -> bool: ...
    def record_message(self, entry: FinishedCollective) -> None: ...
    def own_result_late(self, name: str) -> None: ...
    def interrupted_for_good(self, error: RuntimeError) -> None: ...
    def on_training_thread(self) -> bool: ...


class Messages:
    def __init__(self, engine: MessageEngine, collectives: Collectives) -> None:
        self._engine = engine
        self._collectives = collectives
        self._batched: list[_Received] | None = None
        """In a batch that is being called: all that it receives. NCCL has one work for the whole batch."""

    def handlers(self) -> dict[str, Callable[..., Any]]:
        """Return what is done in place of each function of torch.distributed: it is called with the plain one and its arguments."""
        return {name: self._handler(name) for name in (*_SENDS, *_RECEIVES)} | {_BATCH: self._batch}

    def _is_ours(self) -> bool:
        """Return whether the call that is being made is the script's own, in a job that is protected."""
        return self._engine.on_training_thread() and not self._collectives.inside and self._engine.mode() != "off"

    def _handler(self, name: str) -> Callable[..., Any]:
        def ours(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if not self._is_ours():
                return plain(*args, **kwargs)
            if name in ("isend", "irecv") and _called_by_pipeline():  # what torch does instead of a batch of one kind
                with self._collectives.left_alone():
                    return plain(*args, **kwargs)
            place = "object_list" if name.endswith("_list") else "tensor"
            message = args[0] if args else kwargs.get(place)
            group = group_name(args, kwargs)
            if self._engine.mode() == "answer":
                return self._answered(name, group, message)
            return self._exchanged(name, group, message, functools.partial(plain, *args, **kwargs))

        return ours

    def _batch(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._is_ours():
            return plain(*args, **kwargs)
        if _called_by_pipeline():
            with self._collectives.left_alone():
                return plain(*args, **kwargs)
        if self._engine.mode() == "answer":
            operations = args[0] if args else kwargs["p2p_op_list"]
            return [o.op(o.tensor, group=o.group) for o in operations]
        received: list[_Received] = []
        self._batched = received
        try:
            works = plain(*args, **kwargs)  # made of the functions above
        except RuntimeError as error:
            self._engine.interrupted_for_good(error)
            raise
        finally:
            self._batched = None
        return [work if isinstance(work, _Pending) else _Pending(work, self.awaited, received) for work in works]

    def _answered(self, name: str, group: str, message: Any) -> Any:
        if self._engine.behind_gate():
            raise UnsupportedError(
                f"{name} after the optimizer step: what the lost rank had sent or received by then, no other rank knows"
            )
        results = self._engine.answer(name, group).results
        if name in _SENDS:
            return CompletedCollective() if name == "isend" else None
        if results is None:
            raise UnsupportedError(f"{name}: what the lost rank received was too large to keep")
        if name == "recv_object_list":
            message[:], sender = pickle.loads(results)
            return sender
        if len(results) != (2 if name == "recv" else 1) or not small.fits(results[0], message):
            raise StateMismatchError(f"{name}: the recorded message has another shape, or was never waited for")
        small.put(results[0], message.data)
        return CompletedCollective() if name == "irecv" else int(small.build(results[1]))

    def _exchanged(self, name: str, group: str, message: Any, call: Callable[[], Any]) -> Any:
        self._engine.communication_begins()
        is_late = self._engine.mode() == CollectiveMode.REPEAT
        if is_late:
            self._engine.own_result_late(name)
        # What is sent may come to its end only after what the script does next: nobody waits for that here.
        is_kept = name not in ("recv", "irecv") or _is_kept(message)
        made = self._guarded(call, confirmed=name in _RECEIVED_AT_ONCE and (is_kept or is_late))
        results: Any = []
        if name == "recv":
            results = [small.take(message), small.take(torch.tensor(made))] if is_kept else None
        elif name == "recv_object_list":
            data = pickle.dumps((list(message), made))
            results = data if len(data) <= MAX_RECORDED_BYTES else None
        elif not is_kept:
            results = None
        self._engine.record_message(FinishedCollective(name, group, results))
        if name not in ("isend", "irecv"):
            return made
        received = [_Received(message, results)] if name == "irecv" else []
        if self._batched is not None:
            self._batched += received
        return None if made is None else _Pending(made, self.awaited, received)

    def awaited(self, wait: Callable[[], Any], received: Sequence[_Received]) -> Any:
        """Wait for messages that are under way, and note what was received."""
        is_late = self._engine.mode() == "repeat"
        confirmed = any(is_late or one.results is not None for one in received)
        done = self._guarded(wait, confirmed=confirmed)
        for one in received:
            if one.results is not None:
                one.results[:] = [small.take(one.into)]
        return done

    def _guarded(self, call: Callable[[], Any], *, confirmed: bool) -> Any:
        """Call something that cannot be called again. `confirmed`: as in `communicating`."""
        try:
            with self._collectives.left_alone(), communicating(self._engine, confirmed=confirmed):
                return call()
        except RuntimeError as error:
            self._engine.interrupted_for_good(error)
            raise


@dataclass(frozen=True)
class _Received:
    """A tensor that a message goes into, and its results in the record; None where it is too large to keep."""

    into: torch.Tensor
    results: list[Any] | None


class _Pending:
    """Messages that are under way: one, or a batch. What was received is noted where the script waits for it."""

    def __init__(
        self, work: Any, awaited: Callable[[Callable[[], Any], Sequence[_Received]], Any], received: Sequence[_Received]
    ) -> None:
        self._work = work
        self._awaited = awaited
        self._received = received

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        return self._awaited(functools.partial(self._work.wait, *args, **kwargs), self._received)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _called_by_pipeline() -> bool:
    """Return whether a pipeline has called the caller of this function, which stands for one of torch's."""
    return is_called_by(sys._getframe(1), _PIPELINES)


def _is_kept(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.element_size() <= MAX_RECORDED_BYTES
