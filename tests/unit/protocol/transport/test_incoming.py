from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from torchrelay.protocol import messages as msg
from torchrelay.protocol import relay_pb2
from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.transport.convert import wrap
from torchrelay.protocol.transport.incoming import MOST_GENERATIONS, MOST_RANKS, MOST_STEPS, NAME_CHARS, received

NAN = float("nan")


def standing(**changes: Any) -> msg.FromWorker:
    return msg.FromWorker("n0.w1", dataclasses.replace(msg.Standing(1, 5, 5, "head", "", "h", 1), **changes))


def progress(**changes: Any) -> msg.Progress:
    seen = msg.WorkerProgress("n0.w1", 5, 5, "body", False, 9, "R", 0.1)
    return msg.Progress((dataclasses.replace(seen, **changes),))


def hello(**info: Any) -> msg.AgentHello:
    return msg.AgentHello("n0", 0, "10.0.0.1", (msg.WorkerInfo(**{"worker": "n0.w1", "rank": 0, "pid": 1, **info}),))


@pytest.mark.parametrize(
    "message",
    [
        standing(),
        standing(boundary=-1, late={"w": 2}),
        progress(),
        hello(generation=-1),
        msg.FromWorker("n0.w1", msg.NumberAlarm("loss", 5, NAN, float("inf"), "stop", "the loss is none")),
        msg.FromWorker("n0.w1", msg.ScriptFailed("ValueError", "x" * 100_000, 1, 5)),
    ],
)
def test_what_processes_say_passes(message: Any) -> None:
    assert str(received(wrap(relay_pb2.FromAgent, message))) == str(message)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (standing(boundary=MOST_STEPS + 1), "Standing.boundary"),
        (standing(boundary=-2), "Standing.boundary"),
        (standing(position="upside down"), "Standing.position"),
        (standing(store_port=65_536), "Standing.store_port"),
        (standing(generation=MOST_GENERATIONS + 1), "Standing.generation"),
        (standing(late={"w": -5}), "Standing.late"),
        (standing(store_host="h" * (NAME_CHARS + 1)), "Standing.store_host"),
        (progress(still_s=NAN), "WorkerProgress.still_s"),
        (progress(still_s=float("-inf")), "WorkerProgress.still_s"),
        (progress(boundary=1 << 62), "WorkerProgress.boundary"),
        (msg.Progress(progress().workers * 5000), "Progress.workers"),
        (hello(rank=MOST_RANKS + 1), "WorkerInfo.rank"),
        (hello(generation=1 << 62), "WorkerInfo.generation"),
        (hello(launch={"WORLD_SIZE": "9" * 70_000}), "WorkerInfo.launch"),
        (msg.FromWorker("n0.w1", msg.Armed(0, 1 << 40, "gloo", "")), "Armed.world_size"),
    ],
)
def test_what_no_process_would_say_is_refused_with_the_name_of_the_field(message: Any, field: str) -> None:
    with pytest.raises(FrameError, match=field):
        received(wrap(relay_pb2.FromAgent, message))


def test_what_is_larger_than_its_kind_can_be_is_refused_before_it_is_looked_at() -> None:
    launch = {f"VARIABLE_{n}": "x" * 60_000 for n in range(200)}
    with pytest.raises(FrameError, match="WorkerStarted has more than"):
        received(wrap(relay_pb2.FromAgent, msg.WorkerStarted("n0.w1", 0, 1, launch)))
    journal = msg.JournalContent("n0.w1", {5: bytes(30 << 20)}, {}, b"")
    assert received(wrap(relay_pb2.FromAgent, journal)) == journal
