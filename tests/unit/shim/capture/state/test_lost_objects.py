"""What the variables of functions held that have returned is let go of; what this rank can give to others stays."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch.utils.data import Dataset

from torchrelay.shim.capture.models import device
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.state.lost_objects import let_go
from torchrelay.shim.capture.values.kinds import GONE, Kind
from torchrelay.shim.capture.walks.walk import Walk


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return 3


class Trainer:
    def __init__(self, data: Any, model: torch.nn.Module | None = None) -> None:
        self.data = data
        self.model = model
        self.optimizer = None if model is None else torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def walked(*frames: FrameType, **names: Any) -> HostState:
    return Walk(ModuleTrees()).run(frames, {"script": names})


def running(data: Any, trainer: Any = None) -> Iterator[Any]:
    """Yield the frame, once it runs."""
    seen = 0
    yield sys._getframe()
    while True:
        seen += len(data) + (trainer is not None)
        yield seen


def ended(state: HostState, function: Any) -> bool:
    """Let go of what `function` held, as if it had returned."""
    function.close()
    return let_go(state, ())


def test_a_data_set_that_a_function_alone_held_is_free() -> None:
    function = running(data := Numbers(), Trainer(data))
    state = walked(next(function))
    alive = weakref.ref(data)
    del data
    assert ended(state, function)
    assert alive() is None
    assert state.has_let_go
    assert {node.kind for node in state.nodes} == {Kind.FRAME, Kind.GLOBALS, Kind.SETTINGS, GONE}
    assert all(state.nodes[state.index[id(node.obj)]] is node for node in state.nodes if node.kind is not GONE)


def test_what_others_hold_too_stays() -> None:
    data = Numbers()
    trainer = Trainer(data)
    function = running(data, trainer)
    state = walked(next(function), trainer=trainer)
    assert not ended(state, function)
    assert not state.has_let_go
    assert state.nodes[state.index[id(data)]].obj is data


def test_the_frame_itself_is_free_where_no_data_was_in_it() -> None:
    function = running([1, 2])
    state = walked(next(function), counts=[1])
    was = state.nodes[0].obj
    assert not ended(state, function)
    assert state.nodes[0].obj is not was
    assert id(was) not in state.index


def test_a_frame_that_runs_is_left_alone() -> None:
    function = running(Numbers())
    frame = next(function)
    state = walked(frame)
    assert not let_go(state, [frame])
    assert state.nodes[0].obj is frame


def test_what_the_rank_can_give_stays() -> None:
    model = torch.nn.Linear(300, 300)
    trainer = Trainer(Numbers(), model)
    assert trainer.optimizer is not None
    model(torch.ones(300)).sum().backward()
    trainer.optimizer.step()
    function = running(trainer.data, trainer)
    state = walked(next(function))
    before = device.whole(state, state.roots, as_taken=True)
    del trainer
    assert ended(state, function)
    after = device.whole(state, state.roots, as_taken=True)
    assert before.keys() == after.keys()
    assert "optimizer0.0.momentum_buffer" in after
    assert all(before[path] is after[path] for path in before)
