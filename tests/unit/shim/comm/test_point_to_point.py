"""Two ranks in threads would share the patched functions: what torch does with a message is a stub here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.failing_guard import FAILING
from torch.distributed import distributed_c10d as c10d

from torchrelay.protocol.errors import StateMismatchError, UnsupportedError
from torchrelay.shim.comm.collectives import Collectives
from torchrelay.shim.comm.finished import FinishedCollective
from torchrelay.shim.comm.functions import replace
from torchrelay.shim.comm.point_to_point import Messages

NAMES = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list")


class Engine:
    """`now`: the mode; `behind`: whether it is a joiner's behind its gate."""

    guard = FAILING

    def __init__(self) -> None:
        self.now, self.behind = "record", False
        self.begun = 0
        self.log: list[FinishedCollective] = []
        self.interruptions: list[RuntimeError] = []
        self.late: list[str] = []
        self.garbage: list[RuntimeError] = []
        """What `confirm` has to say, each once: what was received is none of it."""
        self.confirmed = 0

    def mode(self) -> str:
        return self.now

    def communication_begins(self) -> None:
        self.begun += 1

    def answer(self, name: str, group: str) -> FinishedCollective:
        entry = self.log.pop(0)
        assert entry.name == name
        return entry

    def own_result_late(self, name: str) -> None:
        self.late.append(name)

    def behind_gate(self) -> bool:
        return self.behind

    def record_message(self, entry: FinishedCollective) -> None:
        self.log.append(entry)

    def interrupted_for_good(self, error: RuntimeError) -> None:
        self.interruptions.append(error)

    def confirm(self) -> None:
        self.confirmed += 1
        if self.garbage:
            raise self.garbage.pop()

    def waiting(self, on: bool) -> None:
        pass

    def on_training_thread(self) -> bool:
        return threading.current_thread() is threading.main_thread()


class Work:
    def __init__(self, then: Callable[[], Any] = lambda: None) -> None:
        self.then = then

    def wait(self) -> bool:
        self.then()
        return True


class Wire:
    """Stands for torch: every message received is of rank 3."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.broken = False

    def send(self, tensor: torch.Tensor, dst: int, group: Any = None) -> None:
        if self.broken:
            raise RuntimeError("Connection closed by peer")
        self.sent.append(tensor.tolist())

    def recv(self, tensor: torch.Tensor, src: int | None = None, group: Any = None) -> int:
        tensor.fill_(3.0)
        return 3

    def isend(self, tensor: torch.Tensor, dst: int = 0, group: Any = None, **_: Any) -> Work:
        self.sent.append(tensor.tolist())
        return Work()

    def irecv(self, tensor: torch.Tensor, src: int = 0, group: Any = None, **_: Any) -> Work:
        return Work(lambda: tensor.fill_(3.0))

    def batch_isend_irecv(self, operations: list[Any]) -> list[Any]:
        return [o.op(o.tensor, group=o.group) for o in operations]

    def send_object_list(self, object_list: list[Any], dst: int, group: Any = None) -> None:
        dist.send(torch.ones(1), dst)

    def recv_object_list(self, object_list: list[Any], src: int, group: Any = None) -> int:
        object_list[:] = [{"from": 3}]
        return 3


def in_place_of_torch(made: Wire, monkeypatch: pytest.MonkeyPatch) -> Wire:
    for name in NAMES:
        function = getattr(made, name)
        for module in (c10d, dist):
            monkeypatch.setattr(module, name, function)
    monkeypatch.setattr(c10d, "_get_default_group", lambda: None)
    return made


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    return in_place_of_torch(Wire(), monkeypatch)


@pytest.fixture
def engine(wire: Wire) -> Engine:
    made = Engine()
    messages = Messages(made, Collectives(made))  # type: ignore[arg-type]  # a stand-in
    for name, ours in messages.handlers().items():
        replace(made.guard, name, ours)
    return made


class Operation:
    def __init__(self, op: Any, tensor: torch.Tensor) -> None:
        self.op, self.tensor, self.group = op, tensor, None


def exchange() -> list[Any]:
    """What a rank gets in a script with each kind of message."""
    one, two, three, objects = torch.zeros(2), torch.zeros(3), torch.zeros(1), [None]
    dist.send(torch.ones(2), 1)
    sender = dist.recv(one)
    for work in (dist.isend(torch.ones(1), 1), dist.irecv(two, 1)):
        assert work is not None
        work.wait()
    for work in dist.batch_isend_irecv(
        [Operation(dist.isend, torch.ones(1)), Operation(dist.irecv, three)]  # type: ignore[list-item]  # a stand-in
    ):
        work.wait()
    dist.send_object_list([1], 1)
    who = dist.recv_object_list(objects, 1)
    return [sender, one.tolist(), two.tolist(), three.tolist(), who, objects]


def test_each_message_is_told_in_front_of_it(engine: Engine) -> None:
    """It may be the first sign that a loop was left."""
    exchange()
    assert engine.begun == len(engine.log) == 8


def test_a_new_process_gets_what_the_lost_rank_was_sent_and_sends_nothing(engine: Engine, wire: Wire) -> None:
    first = exchange()
    assert first == [3, [3.0, 3.0], [3.0, 3.0, 3.0], [3.0], 3, [{"from": 3}]]
    assert len(wire.sent) == 4
    engine.now = "answer"
    assert exchange() == first
    assert engine.log == []
    assert len(wire.sent) == 4


@pytest.mark.parametrize("name", ["send", "recv", "isend", "irecv"])
def test_behind_the_gate_a_new_process_is_refused(engine: Engine, name: str) -> None:
    engine.now, engine.behind = "answer", True
    with pytest.raises(UnsupportedError, match=f"{name} after the optimizer step"):
        getattr(dist, name)(torch.zeros(1), 1)


def test_a_broken_message_cannot_be_called_again(engine: Engine, wire: Wire) -> None:
    wire.broken, engine.now = True, "repeat"
    with pytest.raises(RuntimeError, match="Connection closed"):
        dist.send(torch.ones(1), 1)
    assert engine.late == ["send"]
    assert len(engine.interruptions) == 1


def test_a_message_that_was_never_waited_for_or_was_too_large_is_no_answer(engine: Engine) -> None:
    dist.irecv(torch.zeros(1), 1)
    dist.recv(torch.zeros(2 << 20))
    engine.now = "answer"
    with pytest.raises(StateMismatchError, match="never waited for"):
        dist.irecv(torch.zeros(1), 1)
    with pytest.raises(UnsupportedError, match="too large to keep"):
        dist.recv(torch.zeros(2 << 20))


def test_an_unprotected_job_s_messages_are_left_alone(engine: Engine) -> None:
    engine.now = "off"
    exchange()
    assert engine.log == []


def test_what_a_pipeline_sends_one_by_one_is_left_alone_as_its_batches_are(engine: Engine, wire: Wire) -> None:
    """torch 2.13 sends a batch of one kind message by message."""
    schedule: dict[str, Any] = {"__name__": "torch.distributed.pipelining.schedules", "dist": dist, "torch": torch}
    exec("def step():\n    dist.isend(torch.ones(1), 1).wait()\n    dist.irecv(torch.zeros(1), 1).wait()", schedule)
    schedule["step"]()
    assert wire.sent == [[1.0]]
    assert engine.log == []


def received_at_once() -> None:
    dist.recv(torch.zeros(1))


def received_as_objects() -> None:
    dist.recv_object_list([None], 1)


def received_later() -> None:
    work = dist.irecv(torch.zeros(1), 1)
    assert work is not None
    work.wait()


def received_in_a_batch() -> None:
    operations: Any = [Operation(dist.isend, torch.ones(1)), Operation(dist.irecv, torch.zeros(1))]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


@pytest.mark.parametrize("mode", ["record", "repeat"])
@pytest.mark.parametrize("receive", [received_at_once, received_as_objects, received_later, received_in_a_batch])
def test_what_was_received_counts_once_it_is_confirmed(receive: Callable[[], None], mode: str, engine: Engine) -> None:
    """On a device an aborted message returns as if it had come."""
    broken = RuntimeError("Connection closed: generation 0 was broken")
    engine.now, engine.garbage = mode, [broken]
    with pytest.raises(RuntimeError, match="generation 0 was broken"):
        receive()
    assert engine.interruptions == [broken]
    assert [entry.results or [] for entry in engine.log if "recv" in entry.name] in ([], [[]])


def test_nobody_waits_for_what_is_sent_and_before_the_gate_for_what_is_not_kept(engine: Engine) -> None:
    """A peer may receive only after what the script does next."""
    for mode in ("record", "repeat"):
        engine.now = mode
        dist.send(torch.ones(1), 1)
        work = dist.isend(torch.ones(1), 1)
        assert work is not None
        work.wait()
    engine.now = "record"
    large = torch.zeros(2 << 20)
    dist.recv(large)
    work = dist.irecv(large, 1)
    assert work is not None
    work.wait()
    assert engine.confirmed == 0
    engine.now = "repeat"
    dist.recv(large)
    work.wait()
    assert engine.confirmed == 2


class OneWork(Wire):
    """As NCCL does a batch: messages within give nothing to wait for, and all is there after the one wait."""

    def __init__(self) -> None:
        super().__init__()
        self.then: list[Callable[[], Any]] = []

    def isend(self, tensor: torch.Tensor, dst: int = 0, group: Any = None, **_: Any) -> Any:
        return None

    def irecv(self, tensor: torch.Tensor, src: int = 0, group: Any = None, **_: Any) -> Any:
        self.then.append(lambda: tensor.fill_(3.0))
        return None

    def batch_isend_irecv(self, operations: list[Any]) -> list[Any]:
        super().batch_isend_irecv(operations)
        return [Work(lambda: [put() for put in self.then])]


class TestABatchWithOneWork:
    @pytest.fixture
    def wire(self, monkeypatch: pytest.MonkeyPatch) -> Wire:
        return in_place_of_torch(OneWork(), monkeypatch)

    def test_all_that_it_receives_is_recorded_where_it_is_waited_for(self, engine: Engine) -> None:
        def receive() -> list[float]:
            tensors = [torch.zeros(1), torch.zeros(1)]
            operations: Any = [Operation(dist.irecv, tensor) for tensor in tensors]
            for work in dist.batch_isend_irecv(operations):
                work.wait()
            return [tensor.item() for tensor in tensors]

        assert receive() == [3.0, 3.0]
        assert engine.confirmed == 1
        engine.now = "answer"
        assert receive() == [3.0, 3.0]

    def test_behind_the_gate_it_is_confirmed(self, engine: Engine) -> None:
        broken = RuntimeError("Connection closed: generation 0 was broken")
        engine.now, engine.garbage = "repeat", [broken]
        with pytest.raises(RuntimeError, match="was broken"):
            received_in_a_batch()
        assert engine.interruptions == [broken]
