"""Waiting for a save, and the future that stands for it."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from support.host_state import journal
from support.loop_script import LOST
from support.save_side import GROUP, PATIENCE_S, THROUGH, Side, Step

from torchrelay.shim.capture.records.encode import decode
from torchrelay.shim.comm.collective_mode import CollectiveMode
from torchrelay.shim.comm.collectives import SAVE_RESULT
from torchrelay.shim.comm.finished import FinishedCollective
from torchrelay.shim.script.save_future import SaveId


def test_a_future_is_written_down_by_the_save_that_it_stands_for(side: Side) -> None:
    step = Step(side)
    future = side.start(step)
    node, _ = decode_globals({"pending": future})
    assert node["pending"][1] == SaveId(GROUP, 1)
    step.let()
    future.result(PATIENCE_S)


def test_waiting_for_a_save_is_interrupted_by_a_migration(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    step, stood = Step(side), []
    future = side.start(step)
    step.wait()

    def interrupted(error: RuntimeError) -> None:
        stood.append(str(error))
        side.enter(1, THROUGH)

    monkeypatch.setattr(side.engine, "interrupted", interrupted)
    side.announce(1)
    step.let(RuntimeError(LOST))
    assert future.result() is None
    assert stood == ["a migration came while a checkpoint was waited for"]


def test_waiting_is_recorded_and_its_end_known_to_who_comes_later(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[FinishedCollective] = []
    monkeypatch.setattr(side.engine, "mode", lambda: CollectiveMode.RECORD)
    monkeypatch.setattr(side.engine, "record", recorded.append)
    step = Step(side)
    step.let()
    side.start(step).result()
    assert recorded == [FinishedCollective(SAVE_RESULT, f"{GROUP}#1", [])]
    second = Step(side)
    future = side.start(second)
    second.wait()
    monkeypatch.setattr(side.engine, "mode", lambda: CollectiveMode.ANSWER)
    monkeypatch.setattr(side.engine, "answer", lambda name, group: FinishedCollective(name, group, []))
    second.let(RuntimeError(LOST))
    side.announce(1)
    assert future.result() is None


def test_who_waits_no_longer_than_told_is_told_that_it_is_not_over(side: Side) -> None:
    step = Step(side)
    future = side.start(step)
    with pytest.raises(TimeoutError):
        future.result(0.01)
    with pytest.raises(TimeoutError):
        future.exception(0.01)
    step.let()
    assert future.exception() is None


def decode_globals(names: dict[str, Any]) -> list[dict[str, Any]]:
    return [node.content for node in decode(pickle.loads(journal(names)))]
