"""The store where the ranks of a generation meet: the script's own in the first one, one that a rank serves in each later one."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from torchrelay.shim.comm import gate

CONNECT_TIMEOUT = timedelta(seconds=60)
FIRST_ATTEMPT_S = 1.0
"""To reach a store; each further one may take twice as long, since a large job's store is slow to answer all of its ranks."""


def serve_store() -> tuple[Any, int]:
    """Host a store for the next generation in this process; return it with its port."""
    store = dist.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=CONNECT_TIMEOUT)
    return store, int(store.port)


def join_store(host: str, port: int, over: Callable[[], bool] = lambda: False) -> Any:
    """Connect to a generation's store. Raises RuntimeError when no process serves it, and when the generation is `over`.

    It tries for a short time, and again: torch tries for as long as it is told to, and nothing can stop it. Where the host is lost,
    a rank would not come to a stand.
    """
    end_s = time.monotonic() + CONNECT_TIMEOUT.total_seconds()
    patience_s = FIRST_ATTEMPT_S
    while True:
        try:
            attempt = timedelta(seconds=patience_s)
            store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=attempt)
        except RuntimeError:
            patience_s = min(2 * patience_s, end_s - time.monotonic())
            if patience_s <= 0 or over():
                raise
        else:
            store.set_timeout(CONNECT_TIMEOUT)
            return store


def of_first(store: Any) -> Any:
    """Return the part of the script's own store where the ranks of the first generation meet."""
    return dist.PrefixStore("torchrelay/0", store)


def decline_gate(store: Any, rank: int) -> None:
    """Tell the others that they need not wait for this rank at the first generation's gate."""
    of_first(store).set(gate.key_of(rank), "")
