"""What is leaned on of torch's saving threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import ModuleType
from typing import Any

import pytest
from torch.distributed.checkpoint import _async_thread_executor as real

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.adapters.checkpoints import async_checkpoint


class Looked:
    """A save that is looked after: it notes what it is to write, and writes nothing."""

    def __init__(self) -> None:
        self.state: Any = None

    def run(self, write: Callable[[Any], Any]) -> Any:
        return "done"

    def promise(self, future: Future[Any]) -> Future[Any]:
        self.state = future.result()
        return future


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """torch's own, which is as it was afterwards."""
    executor = real._ThreadBasedAsyncCheckpointExecutor
    monkeypatch.setattr(executor, "execute_save", executor.execute_save)
    monkeypatch.setattr(real, "save_wrapper", lambda staged, **options: ("plain", staged, options["checkpoint_id"]))
    return real


def save(module: ModuleType, state: Any) -> Any:
    executor = module._ThreadBasedAsyncCheckpointExecutor()
    return executor.execute_save(state, checkpoint_id="there").result(30)


def test_a_save_that_is_looked_after_is_run_on_its_thread_and_promised(module: ModuleType) -> None:
    looked, begun = Looked(), []
    async_checkpoint.install(module, lambda state, options: begun.append((state, options)) or looked)
    assert save(module, {"x": 1}) == "done"
    assert begun == [({"x": 1}, {"checkpoint_id": "there"})]
    assert looked.state == "done"


def test_one_that_is_not_is_left_alone(module: ModuleType) -> None:
    async_checkpoint.install(module, lambda state, options: None)
    assert save(module, {"x": 1})[:2] == ("plain", {"x": 1})


def test_a_torch_that_is_built_otherwise_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="strange is built otherwise"):
        async_checkpoint.install(ModuleType("strange"), lambda state, options: None)
