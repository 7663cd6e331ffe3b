"""What a rank copies at each head: which tensors, from when on, and what ends it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.host_state import take

from torchrelay.protocol.errors import JournalError, StateMismatchError
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.replicas import own_tensors
from torchrelay.shim.replicas.own_tensors import OwnTensors, load

RANK = 3
AVERAGE = ("module1.bias", "module1.weight")


class Job:
    """A rank with a model and an average of its weights, whose paths are module0 and module1."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(1)
        self.model, self.average = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
        self.trees = ModuleTrees()
        self.own = OwnTensors(SimpleNamespace(rank=RANK, shadow=None, world_size=2), folder)  # type: ignore[arg-type]  # what it asks of it
        self.boundary = -1
        self.more: dict[str, Any] = {}

    def _state(self) -> Any:
        return take({"model": self.model, "average": self.average, **self.more}, self.trees)

    def head(self) -> tuple[str, ...]:
        self.boundary += 1
        self.own.at_boundary(SimpleNamespace(boundary=self.boundary, state=self._state()))  # type: ignore[arg-type]  # the same
        return self.own.carried

    def update(self, within: Callable[[], object] = lambda: None) -> None:
        self.own.at_gate(self._state())
        within()
        with torch.no_grad():
            self.model.weight.add_(1)
            self.model.bias.add_(1)
        self.own.after_update()

    def behind(self) -> None:
        with torch.no_grad():
            self.average.weight.lerp_(self.model.weight, 0.1)
            self.average.bias.lerp_(self.model.bias, 0.1)

    def step(self) -> tuple[str, ...]:
        self.update()
        self.behind()
        return self.head()

    def carrying(self) -> Job:
        self.own.assign(AVERAGE[1:])
        self.head()
        assert self.step() == AVERAGE
        return self


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def loaded(folder: Path, boundary: int) -> list[list[float]]:
    found = {"module1.weight": torch.zeros(2, 3)}
    load(folder, RANK, boundary, found)
    return found["module1.weight"].tolist()


def test_nothing_is_copied_that_nobody_asked_for(job: Job, tmp_path: Path) -> None:
    assert (job.head(), job.step(), job.step()) == ((), (), ())
    assert not any(tmp_path.iterdir())


def test_an_average_is_carried_once_it_was_seen_written_behind_an_update_with_all_of_its_model(job: Job) -> None:
    job.own.assign(AVERAGE[1:])
    assert job.head() == ()
    assert not job.own.changed
    assert job.step() == AVERAGE
    assert job.own.changed
    assert job.step() == AVERAGE
    assert not job.own.changed


def test_the_two_latest_heads_can_be_had(job: Job, tmp_path: Path) -> None:
    job.carrying()
    before = job.average.weight.tolist()
    job.step()
    now = job.average.weight.tolist()
    job.update()
    job.behind()
    assert loaded(tmp_path, job.boundary) == now
    assert loaded(tmp_path, job.boundary - 1) == before
    with pytest.raises(JournalError, match="of boundary 0 on this node"):
        loaded(tmp_path, 0)


def test_a_copy_of_another_form_is_not_taken(job: Job, tmp_path: Path) -> None:
    job.carrying()
    for destinations in ({"module1.weight": torch.zeros(3, 2)}, {"module2.weight": torch.zeros(2, 3)}):
        with pytest.raises(StateMismatchError, match="has left none of this form"):
            load(tmp_path, RANK, job.boundary, destinations)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.complex64, torch.bool, torch.int64])
def test_contents_are_compared_bit_by_bit(kind: torch.dtype, job: Job) -> None:
    held = torch.full((70_000,), float("nan") if kind.is_floating_point or kind.is_complex else 1, dtype=kind)
    job.more["held"] = held
    job.own.assign(["value.script.held"])
    job.head()
    for _ in range(own_tensors._UNCHANGED):
        job.update()
        job.head()
    assert job.own.carried == ("value.script.held",)


def test_what_the_update_writes_is_never_carried(job: Job) -> None:
    job.own.assign(["module0.weight"])
    assert (job.head(), job.step()) == ((), ())
    assert "written to module0.weight in its update" in job.own.why_not


def past_torch(job: Job) -> None:
    job.average.weight.data.mul_(0.5)


def counted(job: Job) -> None:
    with torch.no_grad():
        job.average.weight.mul_(0.5)


def replaced(job: Job) -> None:
    job.average.weight = torch.nn.Parameter(torch.ones(2, 3))


@pytest.mark.parametrize("write", [counted, replaced, past_torch])
@pytest.mark.parametrize("carries", [False, True])
def test_a_write_in_front_of_the_gate_ends_it_and_takes_the_copies_away(
    write: Any, carries: bool, job: Job, tmp_path: Path
) -> None:
    if carries:
        job.carrying()
    else:
        job.own.assign(AVERAGE[1:])
        job.head()
    write(job)
    job.update()
    assert "module1" in job.own.why_not
    for boundary in range(job.boundary + 1):
        with pytest.raises(JournalError):
            loaded(tmp_path, boundary)
    assert job.step() == ()
    assert job.own.changed == carries


@pytest.mark.parametrize("where", ["dict", "list", "attribute", "update", "forward"])
def test_others_may_take_their_places_behind_the_update_alone(where: str, job: Job, tmp_path: Path) -> None:
    size = 20_000
    held: Any = {
        "list": [torch.zeros(size)],
        "attribute": SimpleNamespace(a=torch.zeros(size)),
    }.get(where, {"a": torch.zeros(size)})
    job.more["held"] = held
    path = "value.script.held[0]" if where == "list" else "value.script.held.a"
    put = {"list": lambda t: held.__setitem__(0, t), "attribute": lambda t: setattr(held, "a", t)}.get(
        where, lambda t: held.__setitem__("a", t)
    )
    job.own.assign([path])
    job.head()
    for step in range(4):
        now = torch.full((size,), float(step))
        if where == "forward":
            put(now)
        job.update(lambda now=now: put(now) if where == "update" else None)
        if where not in ("update", "forward"):
            put(now)
        job.head()
    if where in ("update", "forward"):
        assert job.own.carried == ()
        assert f"another tensor in the place of {path}" in job.own.why_not
    else:
        assert job.own.carried == (path,)
        found = torch.ones(size)
        load(tmp_path, RANK, job.boundary, {path: found})
        assert found.tolist() == now.tolist()


def test_another_tensor_of_the_model_that_steps_do_not_write_to_comes_from_a_donor(job: Job) -> None:
    job.own.assign(AVERAGE[1:])
    job.head()
    for _ in range(3):
        job.update()
        with torch.no_grad():
            job.average.weight.mul_(0.5)
        job.head()
    assert job.own.carried == ("module1.weight",)
    counted_too = job.average.bias.data
    with torch.no_grad():
        job.average.bias.add_(counted_too + 1)
    assert job.step() == ("module1.weight",)


def test_what_no_step_writes_to_is_carried_after_some_steps(job: Job) -> None:
    job.own.assign(AVERAGE[1:])
    job.head()
    for _ in range(own_tensors._UNCHANGED):
        assert job.own.carried == ()
        job.update()
        job.head()
    assert job.own.carried == ("module1.weight",)
    counted(job)
    job.update()
    assert job.own.carried == ()


def test_a_copy_that_takes_too_much_of_a_step_is_not_made(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.own.assign(AVERAGE[1:])
    clock = itertools.count(0.0, 0.01)  # each part of it seems to take 10 ms
    monkeypatch.setattr(own_tensors.time, "thread_time", lambda: next(clock))
    job.head()
    steps = 0
    while not job.own.why_not and steps < 30:
        job.step()
        steps += 1
    assert "more than a hundredth of a step" in job.own.why_not
    assert steps > own_tensors._TIMED


def test_a_new_process_goes_on_with_what_the_lost_one_has_carried(job: Job, tmp_path: Path) -> None:
    job.carrying()
    content = job.average.weight.tolist()
    new = Job(tmp_path)
    new.boundary = job.boundary - 1
    with torch.no_grad():
        new.average.weight.zero_()
    new.own.enter(job.boundary, {"module1.weight": new.average.weight.data, "module1.bias": new.average.bias.data})
    assert new.average.weight.tolist() == content
    assert new.head() == AVERAGE
    assert not new.own.changed
    assert loaded(tmp_path, new.boundary) == content, "a further process may need it"
    new.own.assign(AVERAGE[1:])
    assert (new.step(), new.own.changed) == (AVERAGE, False)
    assert loaded(tmp_path, new.boundary) == new.average.weight.tolist()


def test_a_process_that_has_its_tensors_in_another_way_carries_them_on_from_its_first_head(
    job: Job, tmp_path: Path
) -> None:
    """The controller counts on what was carried before."""
    job.own.carry_on(AVERAGE)
    assert job.head() == AVERAGE
    assert not job.own.changed
    assert loaded(tmp_path, job.boundary) == job.average.weight.tolist()


def test_shared_memory_is_left_to_others(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size_bytes = (job.average.weight.numel() + job.average.bias.numel()) * 4
    for free_bytes, fits in ((4 * 2 * 2 * size_bytes - 4, False), (4 * 2 * 2 * size_bytes, True)):
        monkeypatch.setattr(os, "cpu_count", lambda: 2)
        monkeypatch.setattr(os, "statvfs", lambda _, free=free_bytes: SimpleNamespace(f_bavail=free, f_frsize=1))
        job.own.carry_on(AVERAGE)
        job.own.why_not = ""
        assert (job.head() == AVERAGE) == fits, job.own.why_not
