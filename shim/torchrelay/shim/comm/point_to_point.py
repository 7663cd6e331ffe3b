"""Messages between two ranks of the script's own (`send`, `recv`, `isend`, `irecv`, objects, batches of them).

Before the gate they are recorded and answered as collectives are. After it they are refused wherever a rank is lost: nobody
but the lost rank knows what it had received, and whether a broken message has arrived the sender cannot tell.
"""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable
from typing import Any, Protocol

import torch

from torchrelay.protocol.errors import StateMismatchError, UnsupportedError
from torchrelay.shim.capture.values import small
from torchrelay.shim.comm.collective_call import CompletedCollective, group_name
from torchrelay.shim.comm.collective_mode import CollectiveMode
from torchrelay.shim.comm.collectives import Collectives
from torchrelay.shim.comm.finished import MAX_RECORDED_BYTES, FinishedCollective
from torchrelay.shim.script.guard import Guard, is_called_by

_SENDS = ("send", "isend", "send_object_list")
_RECEIVES = ("recv", "irecv", "recv_object_list")
_BATCH = "batch_isend_irecv"
FUNCTIONS = (*_SENDS, *_RECEIVES, _BATCH)
_PIPELINES = "torch.distributed.pipelining."
"""Whose messages belong to a schedule's step: see adapters.pipelining."""


class MessageEngine(Protocol):
    """What a message needs to know from whoever runs this process, beside what a collective does."""

    guard: Guard

    def mode(self) -> CollectiveMode: ...
    def communication_begins(self) -> None: ...
    def answer(self, name: str, group: str) -> FinishedCollective: ...
    def behind_gate(self) -> bool: ...
    def record_message(self, entry: FinishedCollective) -> None: ...
    def own_result_late(self, name: str) -> None: ...
    def interrupted_for_good(self, error: RuntimeError) -> None: ...
    def waiting(self, on: bool) -> None: ...
    def on_training_thread(self) -> bool: ...


class Messages:
    def __init__(self, engine: MessageEngine, collectives: Collectives) -> None:
        self._engine, self._collectives = engine, collectives

    def handlers(self) -> dict[str, Callable[..., Any]]:
        """What is done in place of each function of torch.distributed: it is called with the plain one and its arguments."""
        return {name: self._handler(name) for name in (*_SENDS, *_RECEIVES)} | {_BATCH: self._batch}

    def _is_ours(self) -> bool:
        """Whether the call that is being made is the script's own, in a job that is protected."""
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
        return plain(*args, **kwargs)  # made of the functions above

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
        if self._engine.mode() == "repeat":
            self._engine.own_result_late(name)
        made = self._guarded(call)
        results: Any = []
        if name == "recv":
            results = [small.take(message), small.take(torch.tensor(made))] if _is_kept(message) else None
        elif name == "recv_object_list":
            data = pickle.dumps((list(message), made))
            results = data if len(data) <= MAX_RECORDED_BYTES else None
        elif name == "irecv" and not _is_kept(message):
            results = None
        self._engine.record_message(FinishedCollective(name, group, results))
        if name in ("isend", "irecv") and made is not None:
            return _Pending(made, self._guarded, message if name == "irecv" else None, results)
        return made

    def _guarded(self, call: Callable[[], Any]) -> Any:
        self._engine.waiting(True)
        try:
            with self._collectives.left_alone():
                return call()
        except RuntimeError as error:
            self._engine.interrupted_for_good(error)
            raise
        finally:
            self._engine.waiting(False)


class _Pending:
    """A message that is under way. What was received is noted where the script waits for it."""

    def __init__(self, work: Any, guarded: Callable[[Callable[[], Any]], Any], into: Any, results: Any) -> None:
        self._work, self._guarded, self._into, self._results = work, guarded, into, results

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        done = self._guarded(functools.partial(self._work.wait, *args, **kwargs))
        if self._into is not None and self._results is not None:
            self._results[:] = [small.take(self._into)]
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _called_by_pipeline() -> bool:
    """Of the function that calls this one, which stands for one of torch's."""
    return is_called_by(sys._getframe(1), _PIPELINES)


def _is_kept(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.element_size() <= MAX_RECORDED_BYTES
