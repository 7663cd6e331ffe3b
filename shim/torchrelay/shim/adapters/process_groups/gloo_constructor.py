"""Take part where torch constructs gloo's communicator for a group that the script makes: that waits for each peer.

Leans on the name `ProcessGroupGloo` in `torch.distributed.distributed_c10d`, by which torch makes a group's communicator and asks
whether one is gloo's. Seen on torch 2.6.0 to 2.14.1.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

Connect = Callable[[Callable[[], Any]], Any]
_NAME = "ProcessGroupGloo"
_lock = threading.Lock()
_users = 0
_of_thread = threading.local()


class _Instead(type):
    """A metaclass: its class stands for gloo's."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        connect: Connect | None = getattr(_of_thread, "connect", None)
        if connect is None:
            return dist.ProcessGroupGloo(*args, **kwargs)
        return connect(lambda: dist.ProcessGroupGloo(*args, **kwargs))

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, dist.ProcessGroupGloo)

    def __getattr__(cls, name: str) -> Any:
        return getattr(dist.ProcessGroupGloo, name)


class _Gloo(metaclass=_Instead):
    pass


@contextmanager
def called_by(connect: Connect) -> Iterator[None]:
    """Let torch construct, on this thread, what `connect(construct)` returns. Other threads are left alone."""
    global _users
    if not dist.is_gloo_available():
        yield
        return
    before = getattr(_of_thread, "connect", None)
    with _lock:
        _users += 1
        setattr(distributed_c10d, _NAME, _Gloo)
    _of_thread.connect = connect
    try:
        yield
    finally:
        _of_thread.connect = before
        with _lock:
            _users -= 1
            if not _users:
                setattr(distributed_c10d, _NAME, dist.ProcessGroupGloo)
