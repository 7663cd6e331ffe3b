"""Stores that set-up asks (`store.get`, `store.add`, `store.wait`): a joiner is answered as the lost rank was.

A joiner asks none of them: their host may be lost, and what it adds or sets, the lost rank has added and set. A TCPStore or
FileStore that set-up makes is one of its own there, which nobody else sees; but for a client of the store at MASTER_ADDR, which
outlives ranks: once training goes on, it is the store that the others have. torch's own use of stores is left alone.
"""

from __future__ import annotations

import functools
import os
import sys
from types import FrameType
from typing import Any

from torchrelay.protocol.machine.owned_folder import owned_folder
from torchrelay.shim.adapters.cpython.diverted import Diversions
from torchrelay.shim.set_up.outside import Outside, Replayed, asking, key_of

ASKED = (
    *("add", "append", "barrier", "check", "compare_set", "delete_key", "get", "list_keys", "multi_get", "multi_set"),
    *("num_keys", "queue_len", "queue_pop", "queue_push", "set", "wait"),
)
"""All that reads or writes; what is left (`clone`, `timeout`, ...) concerns the object in this process alone."""


def divert_stores(diversions: Diversions, outside: Outside) -> None:
    """Divert what asks stores. Raises UnsupportedError where this torch's classes are built otherwise."""
    import torch.distributed as dist

    for name in ASKED:
        if name in vars(dist.Store):
            diversions.divert_method(dist.Store, name, functools.partial(_asked, outside, name))
    if isinstance(outside, Replayed):
        diversions.divert_method(dist.TCPStore, "__init__", _own_server)
        diversions.divert_method(dist.FileStore, "__init__", _own_file)


def by_script(frame: FrameType) -> FrameType | None:
    """Return the frame, where it is not torch that asks."""
    found = asking(frame)
    return None if found is None or str(found.f_globals.get("__name__", "")).startswith("torch.") else found


def _asked(outside: Outside, name: str, original: Any) -> Any:
    def ask(self: Any, *args: Any, **kwargs: Any) -> Any:
        frame = by_script(sys._getframe(1))
        if frame is None:
            return original(self, *args, **kwargs)
        key = key_of(f"Store.{name}", frame)
        return outside.answer(key, lambda: original(self, *args, **kwargs), needed=True)

    return ask


def _own_server(original: Any) -> Any:
    from torchrelay.shim.adapters.process_groups import agent_store  # not before the script has imported torch

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if asking(sys._getframe(1)) is None:
            original(self, *args, **kwargs)
        elif agent_store.connects_to_it(os.environ, args, kwargs):
            agent_store.connect_uncounted(original, self, args, kwargs)
        else:
            original(self, "127.0.0.1", 0, is_master=True, wait_for_workers=False)

    return init


def _own_file(original: Any) -> Any:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if asking(sys._getframe(1)) is None:
            original(self, *args, **kwargs)
        else:
            with owned_folder("store") as folder:
                original(self, os.path.join(folder, "store"), 1)

    return init
