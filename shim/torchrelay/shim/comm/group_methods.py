"""Collectives that the script calls on a process group itself (`group.monitored_barrier()`, `group.allreduce([x])`).

They are recorded, answered and repeated as those of torch.distributed are. Calls that torch makes are left alone: they are
part of a collective that is seen as a whole, or of a backward.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.comm.collective_call import CollectiveCall
from torchrelay.shim.comm.collectives import Collectives
from torchrelay.shim.script.completed_collective import CompletedCollective
from torchrelay.shim.script.guard import is_called_by

PREFIX = "ProcessGroup."
RESULT_FIRST = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "_allgather_base", "allgather_coalesced"),
    *("allgather_into_tensor_coalesced", "all_gather_single", "all_gather_single_coalesced", "gather", "scatter"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_single_coalesced"),
    *("reduce_scatter_tensor_coalesced", "alltoall", "alltoall_base", "all_to_all_single"),
)
"""Their first argument gets the result."""
BARRIERS = ("barrier", "monitored_barrier")
RECEIVES = ("recv", "recv_anysource")
MESSAGES = ("send", *RECEIVES)
"""Refused where a joiner comes to one: functions of torch.distributed are recorded, methods are not."""


def install(collectives: Collectives) -> None:
    for name in (*RESULT_FIRST, *BARRIERS, *MESSAGES):
        original = getattr(dist.ProcessGroup, name, None)
        if original is not None:
            setattr(dist.ProcessGroup, name, _method(collectives, name, original))
    _wrap_coalescing(collectives)


def _method(collectives: Collectives, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def method(plain: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        by_torch = is_called_by(sys._getframe(1), "torch.")
        if by_torch or not collectives.sees_calls() or self not in c10d._world.pg_names:
            return plain(self, *args, **kwargs)
        if name in MESSAGES:
            collectives.communication_begins()
            if collectives.is_answering():
                raise UnsupportedError(f"ProcessGroup.{name} before the training loop is not recorded")
            if name in RECEIVES and collectives.is_late():
                return collectives.received(plain(self, *args, **kwargs))
            return plain(self, *args, **kwargs)

        def whole() -> Any:
            work = plain(self, *args, **kwargs)
            if work is not None:
                work.wait()
            return work

        out = None if name in BARRIERS or not args else args[0]
        group = str(c10d._world.pg_names[self])
        made = collectives.call(CollectiveCall(PREFIX + name, group, whole, out, objects=False))
        return CompletedCollective() if made is None and name != "monitored_barrier" else made

    return functools.wraps(original)(collectives.guard.entry(original, method))


def _wrap_coalescing(collectives: Collectives) -> None:
    """Wrap torch's coalescing: collectives within are done where the context is left, and their results are there only then."""
    original = getattr(c10d, "_coalescing_manager", None)
    if original is None:
        return

    @functools.wraps(original)
    @contextmanager
    def manager(*args: Any, **kwargs: Any) -> Iterator[Any]:
        if not collectives.sees_calls():
            with original(*args, **kwargs) as made:
                yield made
        elif collectives.is_answering():
            yield CompletedCollective()
        else:
            asynchronous = bool(kwargs.get("async_ops", args[2] if len(args) > 2 else False))
            with collectives.together(asynchronous=asynchronous):
                with original(*args, **kwargs) as made:
                    yield made
                if asynchronous and collectives.is_late():
                    made.wait()

    for module in [m for n, m in sys.modules.copy().items() if n.split(".")[:2] == ["torch", "distributed"]]:
        if vars(module).get("_coalescing_manager") is original:
            setattr(module, "_coalescing_manager", manager)  # noqa: B010 - mypy forbids the assignment
