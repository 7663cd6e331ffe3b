"""A step that changes a store is noticed; what sets a value, or is done on other threads, is not meant."""

from __future__ import annotations

import threading
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from torchrelay.shim.observe.changed_stores import ChangedStores
from torchrelay.shim.script.guard import Guard


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("add", "append", "compare_set", "delete_key", "queue_pop", "queue_push"):
        if name in vars(dist.Store):
            monkeypatch.setattr(dist.Store, name, getattr(dist.Store, name))  # put back in the end
    main = threading.get_ident()
    made: Any = SimpleNamespace(
        commit=object(), guard=Guard(lambda: None), takes_part=lambda: threading.get_ident() == main, told=[]
    )

    def store_is_changed(frame: FrameType, name: str) -> None:
        made.reporter.store_changed = name
        made.told.append((frame.f_code.co_name, name))

    made.reporter = SimpleNamespace(store_changed=None, store_is_changed=store_is_changed)
    ChangedStores(made).training_begins()
    return made


def _count(store: dist.Store) -> int:
    return store.add("steps", 1)


def test_a_counter_is_told_once_with_who_counts(engine: Any) -> None:
    store = dist.PrefixStore("of script", dist.HashStore())
    assert (_count(store), _count(store)) == (1, 2)
    assert engine.told == [("_count", "add")]


def test_a_value_that_is_set_and_read_is_no_obstacle(engine: Any) -> None:
    store = dist.HashStore()
    store.set("a", "1")
    assert store.get("a") == b"1"
    assert store.check(["a"])
    assert not engine.told


def test_nothing_is_told_before_there_is_a_boundary_or_on_other_threads(engine: Any) -> None:
    store = dist.HashStore()
    thread = threading.Thread(target=_count, args=[store])
    thread.start()
    thread.join()
    engine.commit = None
    _count(store)
    assert not engine.told
