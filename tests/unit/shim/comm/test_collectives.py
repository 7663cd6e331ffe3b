from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.tensor  # before anything is replaced: it keeps the functions that it finds
from support.failing_guard import FAILING
from torch.distributed import distributed_c10d as c10d

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.comm import collectives, finished
from torchrelay.shim.comm.collectives import Collectives
from torchrelay.shim.comm.finished import FinishedCollective
from torchrelay.shim.comm.functions import replace


class FakeEngine:
    """`now`: the mode; `breaks`: how many calls of the original still fail."""

    guard = FAILING

    def __init__(self) -> None:
        self.now, self.begun, self.is_set_up = "record", 0, False
        self.communications = 0
        self.recorded: list[FinishedCollective] = []
        self.answers: list[FinishedCollective] = []
        self.replays: list[FinishedCollective] = []
        self.interruptions: list[RuntimeError] = []
        self.aside: list[Any] = []
        self.waits: list[bool] = []
        self.summed: list[torch.Tensor] = []
        self.certain: list[torch.Tensor] = []
        self.late: list[str] = []
        self.confirmed = 0
        self.garbage: list[RuntimeError] = []
        """What `confirm` has to say, each once: what a collective has left is none of its result."""
        self.for_good: list[RuntimeError] = []
        self.threads: list[threading.Thread] = []
        self.dispatches: list[threading.Thread] = []

    def mode(self) -> str:
        return self.now

    def communication_begins(self) -> None:
        self.communications += 1

    def collective_begins(self) -> None:
        self.begun += 1

    def caught_up(self, group: str) -> bool:
        return False

    def answer(self, name: str, group: str, *, without_result: bool = False) -> FinishedCollective:
        return self.answers.pop(0)

    def replayed(self, name: str, group: str, *, without_result: bool = False) -> FinishedCollective | None:
        return self.replays.pop(0) if self.replays else None

    def record(self, entry: FinishedCollective) -> None:
        self.recorded.append(entry)

    def before_first_gate(self) -> bool:
        return self.is_set_up

    def completed(self, entry: FinishedCollective, now: FinishedCollective) -> None:
        self.recorded[next(n for n, known in enumerate(self.recorded) if known is entry)] = now

    def begun_aside(self, work: Any) -> None:
        self.aside.append(work)

    def waited_for(self, work: Any) -> None:
        self.aside = [other for other in self.aside if other is not work]

    def interrupted(self, error: RuntimeError) -> None:
        self.interruptions.append(error)

    def own_result_late(self, name: str) -> None:
        self.late.append(name)

    def waiting(self, on: bool) -> None:
        self.waits.append(on)

    def interrupted_for_good(self, error: RuntimeError) -> None:
        self.for_good.append(error)

    def confirm(self) -> None:
        self.confirmed += 1
        if self.garbage:
            raise self.garbage.pop()

    def on_training_thread(self) -> bool:
        return threading.current_thread() is threading.main_thread()

    def beside(self, call: Any) -> Any:
        self.threads.append(threading.current_thread())
        return call()

    def waits_beside(self, wait: Any) -> Any:
        self.dispatches.append(threading.current_thread())
        return wait()

    def answered(self, tensors: list[torch.Tensor]) -> None:
        self.certain += tensors

    def summed_up(self, tensors: list[torch.Tensor]) -> None:
        self.summed += tensors


@pytest.fixture
def job() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def engine(job: None, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    for name in (*collectives._TENSOR_OUT, *collectives._OBJECTS_OUT):
        for module in (c10d, dist):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setattr(dist.Work, "wait", dist.Work.wait)
    engine = FakeEngine()
    installed = Collectives(engine)
    installed.wrap_wait()
    for name, ours in installed.handlers().items():
        replace(engine.guard, name, ours)
    return engine


def answer_like(engine: FakeEngine) -> None:
    engine.answers, engine.now = list(engine.recorded), "answer"


def test_results_are_recorded_under_name_and_group(engine: FakeEngine) -> None:
    tensor = torch.tensor([1.0, 2.0])
    dist.all_reduce(tensor)
    (entry,) = engine.recorded
    assert (entry.name, entry.group) == ("all_reduce", c10d._world.pg_names[c10d._get_default_group()])
    assert engine.waits == [True, False]


def test_a_recorded_result_answers_the_same_call(engine: FakeEngine) -> None:
    parts = [torch.empty(2)]
    dist.all_gather(parts, torch.tensor([3.0, 4.0]))
    answer_like(engine)
    here = [torch.zeros(2)]
    dist.all_gather(here, torch.tensor([0.0, 0.0]))
    assert here[0].tolist() == [3.0, 4.0]
    assert [id(tensor) for tensor in engine.certain] == [id(here[0])]


def test_that_one_begins_is_told_whatever_comes_of_it(engine: FakeEngine) -> None:
    dist.all_reduce(torch.ones(1))
    engine.now, engine.answers = "answer", [FinishedCollective("all_reduce", "", None)]
    dist.all_reduce(torch.ones(1))
    assert engine.begun == 2


def test_a_result_that_was_not_kept_makes_nothing_certain(engine: FakeEngine) -> None:
    engine.now, engine.answers = "answer", [FinishedCollective("all_reduce", "", None)]
    dist.all_reduce(torch.ones(1))
    assert engine.certain == []


def test_objects_are_recorded_one_level_only_and_answered(engine: FakeEngine) -> None:
    gathered: list[Any] = [None]
    dist.all_gather_object(gathered, {"rank": 0})
    assert [entry.name for entry in engine.recorded] == ["all_gather_object"]
    answer_like(engine)
    here: list[Any] = [None]
    dist.all_gather_object(here, "not asked")
    assert here == [{"rank": 0}]
    engine.answers, listed = list(engine.recorded), ["x"]
    engine.recorded[0] = FinishedCollective("broadcast_object_list", "", engine.recorded[0].results)
    dist.broadcast_object_list(listed, src=0)
    assert listed == [{"rank": 0}]


def test_another_shape_than_the_recorded_is_refused(engine: FakeEngine) -> None:
    dist.all_reduce(torch.ones(2))
    answer_like(engine)
    with pytest.raises(StateMismatchError, match="another shape"):
        dist.all_reduce(torch.ones(3))


def test_large_results_are_not_kept(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finished, "MAX_RECORDED_BYTES", 16)
    dist.broadcast(torch.ones(5), src=0)
    dist.broadcast(torch.ones(4), src=0)
    assert [entry.results is None for entry in engine.recorded] == [True, False]
    answer_like(engine)
    here = torch.zeros(5)
    dist.broadcast(here, src=0)
    assert here.tolist() == [0.0] * 5


def test_an_asynchronous_call_is_answered_with_something_to_wait_for(engine: FakeEngine) -> None:
    tensor = torch.ones(1)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    assert engine.aside == [work]
    work.wait()
    assert not engine.aside
    answer_like(engine)
    answered = dist.all_reduce(tensor, async_op=True)
    assert answered is not None
    assert answered.wait()
    assert answered.is_completed()


def test_what_set_up_has_waited_for_is_recorded_with_its_result(engine: FakeEngine) -> None:
    engine.is_set_up = True
    first, second = torch.full((2,), 3.0), torch.full((2,), 4.0)
    works = [dist.all_reduce(first, async_op=True), dist.all_reduce(second, async_op=True)]
    assert [entry.results for entry in engine.recorded] == [None, None]
    for work in reversed(works):
        assert work is not None
        work.wait()
    answer_like(engine)
    for expected in (3.0, 4.0):
        here = torch.zeros(2)
        answered = dist.all_reduce(here, async_op=True)
        assert answered is not None
        answered.wait()
        assert here.tolist() == [expected, expected]


def test_what_set_up_has_waited_for_is_not_recorded_unless_it_is_confirmed(engine: FakeEngine) -> None:
    """On a device one that was aborted is waited for as if nothing were wrong."""
    engine.is_set_up, engine.garbage = True, [RuntimeError("Connection closed: generation 0 was broken")]
    work = dist.all_reduce(torch.ones(1), async_op=True)
    assert work is not None
    with pytest.raises(RuntimeError, match="was broken"):
        work.wait()
    assert [entry.results for entry in engine.recorded] == [None]


@pytest.mark.parametrize("mode", ["record", "repeat"])
def test_a_result_that_turns_out_to_be_garbage_is_not_recorded_and_asked_for_again(
    mode: str, engine: FakeEngine
) -> None:
    engine.now, engine.garbage = mode, [RuntimeError("Connection closed: generation 0 was broken")]
    dist.all_reduce(torch.ones(1))
    assert (len(engine.interruptions), engine.confirmed, len(engine.recorded)) == (1, 2, 1)


def test_another_exception_over_what_was_garbage_is_not_the_script_s(engine: FakeEngine) -> None:
    """Over sizes of objects that were never received, for example."""
    engine.garbage = [RuntimeError("Connection closed: generation 0 was broken")]
    with pytest.raises(TypeError):
        dist.all_reduce("no tensor")  # type: ignore[arg-type]  # as it is meant
    assert len(engine.interruptions) == 1


def test_what_steps_call_is_not_copied(engine: FakeEngine) -> None:
    """Gradients on their way, for example: without peers their content does not matter."""
    work = dist.all_reduce(torch.ones(2), async_op=True)
    assert work is not None
    work.wait()
    assert [entry.results for entry in engine.recorded] == [None]


def test_who_waits_for_an_asynchronous_call_waits(engine: FakeEngine) -> None:
    work = dist.all_reduce(torch.ones(1), async_op=True)
    assert work is not None
    engine.waits.clear()
    work.wait()
    assert engine.waits == [True, False]
    engine.waits.clear()
    engine.now = "off"
    work.wait()
    assert engine.waits == []


def test_a_result_of_one_rank_alone_after_the_step_is_told(engine: FakeEngine) -> None:
    dist.reduce(torch.ones(1), dst=0)
    engine.now = "repeat"
    dist.all_reduce(torch.ones(1))
    assert engine.late == []
    dist.reduce(torch.ones(1), dst=0)
    assert engine.late == ["reduce"]


def test_collectives_of_another_thread_are_told_and_not_recorded(engine: FakeEngine) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(dist.barrier).result()
    assert len(engine.threads) == 1
    assert engine.dispatches == engine.threads  # it waits, and holds nobody up
    assert (engine.recorded, engine.waits) == ([], [])


class Breaking:
    """Stands for a collective that writes half of its result and then fails, `times` times."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.seen: list[list[float]] = []

    def __call__(self, tensor: torch.Tensor, **_: Any) -> None:
        self.seen.append(tensor.tolist())
        tensor += 1
        if self.times:
            self.times -= 1
            raise RuntimeError("Connection closed by peer")


@pytest.fixture
def broken(job: None, monkeypatch: pytest.MonkeyPatch) -> tuple[FakeEngine, Breaking]:
    breaking, engine = Breaking(2), FakeEngine()
    for module in (c10d, dist):
        monkeypatch.setattr(module, "all_reduce", breaking)
    wrapped = Collectives(engine)
    replace(engine.guard, "all_reduce", wrapped.handlers()["all_reduce"])
    return engine, breaking


def test_past_the_gate_a_broken_collective_is_repeated_from_its_own_input(
    broken: tuple[FakeEngine, Breaking], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, breaking = broken
    engine.now = "repeat"
    tensor = torch.tensor([5.0])
    stood_with: list[float] = []
    monkeypatch.setattr(engine, "interrupted", lambda error: stood_with.append(tensor.item()))
    dist.all_reduce(tensor)
    assert breaking.seen == [[5.0]] * 3
    assert tensor.item() == 6.0
    assert stood_with == [5.0, 5.0]  # a joiner may be given this tensor
    assert [t is tensor for t in engine.summed] == [True]
    assert [entry.name for entry in engine.recorded] == ["all_reduce"]


def test_what_peers_had_done_already_is_taken_from_their_record(broken: tuple[FakeEngine, Breaking]) -> None:
    engine, breaking = broken
    engine.now, breaking.times = "record", 0
    dist.all_reduce(torch.tensor([7.0]))
    engine.replays, engine.now = list(engine.recorded), "repeat"
    breaking.seen.clear()
    tensor = torch.tensor([0.0])
    dist.all_reduce(tensor)
    assert tensor.item() == 8.0
    assert breaking.seen == []
    assert len(engine.recorded) == 2


def test_without_protection_nothing_is_recorded(engine: FakeEngine) -> None:
    engine.now = "off"
    dist.all_reduce(torch.ones(1))
    dist.barrier()
    assert (engine.recorded, engine.waits) == ([], [])


def test_every_wrapped_name_is_one_that_torch_has() -> None:
    """Seen on torch 2.13; a torch that lacks one simply has nothing to wrap."""
    names = (*collectives._TENSOR_OUT, *collectives._OBJECTS_OUT)
    assert [n for n in names if not hasattr(c10d, n) and not hasattr(dist, n)] == []
