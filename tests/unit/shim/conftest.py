"""The shim reaches into the process: no test may leave that behind for the next one, which may run in any order."""

from __future__ import annotations

import builtins
import io
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.loop_script import LoopScript
from support.noisy_loader import draws as draws
from support.save_side import GROUP, Side
from torch.utils.data import _utils

from torchrelay.shim.adapters.process_groups import process_group
from torchrelay.shim.backends.forgotten_waits import NAME as WATCH
from torchrelay.shim.capture.iteration import kept_workers

OPEN = builtins.open
WATCH_ENDS_S = 10.0


@pytest.fixture(autouse=True)
def nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch.set_grad_enabled(True)  # a generator that stands in a `with torch.no_grad()` leaves them off for its caller
    monkeypatch.setattr(kept_workers.MultiIter, "_reset", kept_workers.MultiIter._reset)
    monkeypatch.setattr(_utils.worker, "_worker_loop", _utils.worker._worker_loop)
    yield
    for thread in threading.enumerate():
        if thread.name == WATCH:
            thread.join(WATCH_ENDS_S)
            assert not thread.is_alive(), "threads that wait for gloo are still woken"
    assert builtins.open is OPEN, "open() is still diverted"
    assert io.open is OPEN, "io.open is still diverted"
    assert "data" not in vars(torch.Tensor), "Tensor.data is still watched"
    assert torch._C._len_torch_function_stack() == 0, "a function mode is still on"
    if "torch._dynamo.pgo" in sys.modules:  # what this test has compiled for several sizes
        sys.modules["torch._dynamo.pgo"].reset_code_state()


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopScript]:
    script = LoopScript(monkeypatch, tmp_path)
    yield script
    script.engine.updates.look_no_more()  # nobody is told of the end of a `while`
    script.engine.comms.waits.renewed(sys.maxsize)


@pytest.fixture
def side(script: LoopScript, monkeypatch: pytest.MonkeyPatch) -> Side:
    script.tracker.live = True
    ranks = [0, 1]
    monkeypatch.setattr(process_group, "named_or_default", lambda group: (group or GROUP, ranks))
    monkeypatch.setattr(process_group, "named", lambda name: (name, ranks))
    monkeypatch.setattr(script.engine.comms, "break_all", lambda: 0)
    return Side(script)
