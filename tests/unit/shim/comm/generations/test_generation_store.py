"""Stores that are served, joined late, and given up."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from support.ports import free_port

from torchrelay.shim.comm.generations import generation_store
from torchrelay.shim.comm.generations.generation_store import join_store, serve_store


def test_a_store_that_nobody_serves_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_store, "CONNECT_TIMEOUT", timedelta(seconds=1))
    store, port = serve_store()
    del store
    with pytest.raises(RuntimeError):
        join_store("127.0.0.1", port)


def test_a_store_whose_host_is_lost_is_given_up_once_that_is_told() -> None:
    store, port = serve_store()
    del store
    tried, is_over = threading.Event(), threading.Event()

    def over() -> bool:
        tried.set()
        return is_over.is_set()

    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(join_store, "127.0.0.1", port, over)
        assert tried.wait(30)
        is_over.set()
        with pytest.raises(RuntimeError):
            joining.result(30)


def test_a_store_that_comes_late_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    served: list[Any] = []

    def over() -> bool:
        if not served:
            served.append(dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False))
        return False

    monkeypatch.setattr(generation_store, "FIRST_ATTEMPT_S", 0.1)
    joined = join_store("127.0.0.1", port, over)
    joined.set("key", "value")
    assert served[0].get("key") == b"value"
    assert joined.timeout == generation_store.CONNECT_TIMEOUT
