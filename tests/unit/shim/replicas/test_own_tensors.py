"""What a rank copies at each head and behind each update: which tensors, from when on, and what ends it."""

from __future__ import annotations

import gc
import itertools
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.host_state import take

from torchrelay.protocol.errors import JournalError, StateMismatchError
from torchrelay.shim.capture.models import device
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.replicas import own_tensors
from torchrelay.shim.replicas.own_tensor_copies import read
from torchrelay.shim.replicas.own_tensors import OwnTensors

RANK = 3
AVERAGE = ("module1.bias", "module1.weight")
MODEL = ("module0.bias", "module0.weight")
MOMENTA = ("optimizer0.0.momentum_buffer", "optimizer0.1.momentum_buffer")
GRADIENT = "gradient.module0.weight"


class Job:
    """A rank with a model and an average of its weights, whose paths are module0 and module1."""

    def __init__(self, folder: Path, *, is_limited: bool = True) -> None:
        torch.manual_seed(1)
        self.model, self.average = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5, momentum=0.9)
        self.trees = ModuleTrees()
        self.gradients: dict[str, torch.Tensor] = {}
        self.open_gradients: dict[str, torch.Tensor] = {}
        self.effects = b""
        engine: Any = SimpleNamespace(rank=RANK, shadow=None, world_size=2)
        self.own = OwnTensors(
            engine,
            folder,
            lambda: self.gradients,
            lambda: self.gradients,
            lambda: self.effects,
            open_gradients=lambda: self.open_gradients,
            is_limited=is_limited,
        )
        self.boundary = -1
        self.more: dict[str, Any] = {}

    def _state(self) -> Any:
        return take(self._namespace(), self.trees)

    def _namespace(self) -> dict[str, Any]:
        return {"model": self.model, "average": self.average, "o": self.optimizer, **self.more}

    def _at_gate(self) -> Any:
        return take(self._namespace(), self.trees, at_gate_of=self.state)

    def head(self) -> tuple[str, ...]:
        self.boundary += 1
        commit: Any = SimpleNamespace(boundary=self.boundary, state=self._state())
        self.own.at_boundary(commit)
        self.state = commit.state
        return self.own.carried

    def update(self, within: Callable[[], object] = lambda: None) -> None:
        self.own.update_begins()
        within()
        self.model.weight.grad = torch.ones(2, 3)
        self.model.bias.grad = torch.ones(2)
        self.optimizer.step()
        self.own.behind_update(self.state, self._at_gate)

    def behind(self) -> None:
        with torch.no_grad():
            self.average.weight.lerp_(self.model.weight, 0.1)
            self.average.bias.lerp_(self.model.bias, 0.1)

    def step(self) -> tuple[str, ...]:
        self.update()
        self.behind()
        return self.head()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def at_head(folder: Path, boundary: int, path: str = "module1.weight") -> list[Any]:
    return read(folder, RANK, boundary).views[path].tolist()  # type: ignore[no-any-return]  # torch's own


def behind_update(folder: Path, boundary: int, path: str = "module1.weight") -> list[Any]:
    return read(folder, RANK, boundary, behind_update=True).views[path].tolist()  # type: ignore[no-any-return]  # as above


def test_nothing_is_copied_where_other_ranks_hold_the_same(job: Job, tmp_path: Path) -> None:
    job.own.assign(())
    assert (job.head(), job.step(), job.step()) == ((), (), ())
    assert not any(tmp_path.iterdir())


def test_all_of_a_small_state_is_copied_until_somebody_says_what_is_the_ranks_own(job: Job, tmp_path: Path) -> None:
    assert job.head() == (*MODEL, *AVERAGE)
    job.update()
    momentum = job.optimizer.state[job.model.weight]["momentum_buffer"]
    assert behind_update(tmp_path, 1, MOMENTA[0]) == momentum.tolist(), "the first update has made it"
    assert job.head() == (*MODEL, *AVERAGE, *MOMENTA)
    job.own.assign(AVERAGE)
    assert job.step() == AVERAGE
    job.own.assign(())
    assert job.step() == ()
    assert not [*tmp_path.rglob("tensors*")], "its memory is given back"


@pytest.mark.parametrize("is_told", [False, True])
@pytest.mark.parametrize("is_bound_anew", [False, True])
def test_what_the_function_that_updates_calls_otherwise_is_copied_by_its_name_at_the_head(
    is_told: bool, is_bound_anew: bool, job: Job, tmp_path: Path
) -> None:
    bank = SimpleNamespace(rows=torch.zeros(20_000))
    job.more["parts"] = {"bank": bank}
    job.head()
    path = next(path for path in job.own.carried if path.endswith("rows"))
    if is_told:
        job.own.assign([path])
        job.head()

    def bind() -> None:
        bank.rows = bank.rows + 1 if is_bound_anew else bank.rows.fill_(1.0)
        job.more = {"held": bank, **job.more}

    job.update(bind)
    assert behind_update(tmp_path, job.boundary + 1, path)[:2] == [1.0, 1.0]


def test_an_unprotected_rank_gives_memory_back_and_holds_no_tensor(job: Job, tmp_path: Path) -> None:
    job.more["held"] = torch.zeros(20_000)
    job.head()
    held = weakref.ref(job.more["held"])
    job.own.drop()
    job.more.clear()
    del job.state
    gc.collect()
    assert (held(), [*tmp_path.rglob("tensors*")]) == (None, [])


def test_nobody_is_waited_for_longer_than_the_first_steps(job: Job) -> None:
    job.head()
    for _ in range(own_tensors._EARLY_STEPS):
        assert job.step() != ()
    assert job.step() == ()
    assert job.own.why_not == ""
    job.own.assign(AVERAGE)
    assert job.step() == AVERAGE


def test_a_large_state_is_not_copied_before_it_is_known_how_long_a_step_takes(job: Job) -> None:
    job.more["held"] = torch.zeros(own_tensors.EARLY_BYTES // 4 + 1)
    assert job.head() == ()


def test_what_was_asked_for_is_carried_from_the_next_head_on(job: Job) -> None:
    job.own.assign(AVERAGE)
    assert (job.head(), job.own.changed) == (AVERAGE, True)
    assert (job.step(), job.own.changed) == (AVERAGE, False)


def test_the_two_latest_heads_can_be_had(job: Job, tmp_path: Path) -> None:
    job.own.assign(AVERAGE)
    job.head()
    before = job.average.weight.tolist()
    job.step()
    now = job.average.weight.tolist()
    job.update()
    job.behind()
    assert at_head(tmp_path, job.boundary) == now
    assert at_head(tmp_path, job.boundary - 1) == before
    job.head()
    with pytest.raises(JournalError, match="of boundary 0 on this node"):
        at_head(tmp_path, 0)


def test_what_an_update_leaves_can_be_had_until_the_next_one_begins(job: Job, tmp_path: Path) -> None:
    paths = (*MODEL, *MOMENTA)
    job.own.assign(MODEL)
    job.head()
    job.step()
    job.own.assign(paths)
    job.head()
    job.update()
    kept = [behind_update(tmp_path, job.boundary + 1, path) for path in paths]
    momenta = [job.optimizer.state[p]["momentum_buffer"].tolist() for p in job.model.parameters()]
    assert kept == [job.model.bias.tolist(), job.model.weight.tolist(), *momenta]
    assert at_head(tmp_path, job.boundary, "module0.bias") != kept[0]
    job.head()
    assert behind_update(tmp_path, job.boundary, "module0.bias") == kept[0]
    job.own.update_begins()
    with pytest.raises(JournalError, match=f"behind the update that leads to boundary {job.boundary} on"):
        behind_update(tmp_path, job.boundary)


def test_an_update_that_another_one_follows_in_the_same_step_leaves_nothing(job: Job, tmp_path: Path) -> None:
    job.own.assign(MODEL)
    job.head()
    job.update()
    behind_update(tmp_path, 1, "module0.bias")
    job.own.update_begins()
    with pytest.raises(JournalError):
        behind_update(tmp_path, 1)
    job.update()
    assert behind_update(tmp_path, 1, "module0.bias") == job.model.bias.tolist()


def test_gradients_and_numbers_of_the_update_are_left_with_it(job: Job, tmp_path: Path) -> None:
    job.gradients[GRADIENT] = torch.full((2, 3), 7.0)
    job.gradients["gradient.module0.bias"] = torch.zeros(2)
    job.effects = b"numbers"
    job.own.assign((*MODEL, GRADIENT))
    assert job.head() == (GRADIENT, *MODEL)
    assert at_head(tmp_path, 0, GRADIENT) == [[7.0] * 3] * 2
    job.gradients[GRADIENT] = torch.full((2, 3), 8.0)
    job.update()
    assert behind_update(tmp_path, 1, GRADIENT) == [[8.0] * 3] * 2
    assert bytes(behind_update(tmp_path, 1, device.EFFECTS)) == b"numbers"
    assert "gradient.module0.bias" not in read(tmp_path, RANK, 1, behind_update=True).views
    del job.gradients[GRADIENT]
    job.head()
    assert f"{GRADIENT} is not there at each head" in job.own.why_not


def test_a_copy_of_another_form_is_not_taken(job: Job, tmp_path: Path) -> None:
    job.own.assign(AVERAGE)
    job.head()
    for destinations in ({"module1.weight": torch.zeros(3, 2)}, {"module2.weight": torch.zeros(2, 3)}):
        with pytest.raises(StateMismatchError, match="has left none of this form"):
            read(tmp_path, RANK, job.boundary).put(destinations)


@pytest.mark.parametrize("where", ["forward", "update", "behind"])
@pytest.mark.parametrize("held", ["dict", "list", "attribute", "variable", "model", "optimizer", "submodule"])
def test_another_tensor_in_the_place_of_one_is_copied(held: str, where: str, job: Job, tmp_path: Path) -> None:
    """Wherever a step puts it there."""
    size = 20_000
    box: Any = {
        "list": [torch.zeros(size)],
        "attribute": SimpleNamespace(a=torch.zeros(size)),
        "submodule": torch.nn.Sequential(torch.nn.Linear(size, 1)),
    }.get(held, {"a": torch.zeros(size)})
    job.more["held"] = box["a"] if held == "variable" else box
    values = job.optimizer.state[job.model.bias]
    path, put = {
        "dict": ("value.script.held.a", lambda t: box.__setitem__("a", t)),
        "list": ("value.script.held[0]", lambda t: box.__setitem__(0, t)),
        "attribute": ("value.script.held.a", lambda t: setattr(box, "a", t)),
        "variable": ("value.script.held", lambda t: job.more.__setitem__("held", t)),
        "model": ("module1.bias", lambda t: setattr(job.average, "bias", torch.nn.Parameter(t[:2]))),
        "optimizer": ("optimizer0.1.momentum_buffer", lambda t: values.__setitem__("momentum_buffer", t[:2])),
        "submodule": ("module2.0.weight", lambda t: box.__setitem__(0, linear(t))),
    }[held]
    values["momentum_buffer"] = torch.zeros(2)
    job.own.assign([path])
    job.head()
    for step in range(3):
        now = torch.full((size,), float(step + 1))
        if where == "forward":
            put(now)
        job.update(lambda now=now: put(now) if where == "update" else None)
        left = behind_update(tmp_path, job.boundary + 1, path)
        if where == "behind":
            put(now)
        elif held != "optimizer":  # the update goes on to write to that
            assert _flat(left)[0] == step + 1
        assert job.head() == (path,), job.own.why_not
        if held != "optimizer" or where == "behind":
            assert _flat(at_head(tmp_path, job.boundary, path))[0] == step + 1
        else:
            assert at_head(tmp_path, job.boundary, path) == left


def test_what_each_step_makes_anew_is_copied_behind_the_update_too(job: Job, tmp_path: Path) -> None:
    """At the gate it is in the journal by value. A process that enters behind the update has it as a large one."""
    path = "value.script.last"
    job.more["last"] = torch.zeros(20_000)
    job.own.assign([path])
    job.head()
    for step in range(3):
        job.more["last"] = torch.full((20_000,), float(step + 1))
        job.update()
        assert behind_update(tmp_path, job.boundary + 1, path)[0] == step + 1
        assert job.head() == (path,), job.own.why_not


def linear(t: torch.Tensor) -> torch.nn.Linear:
    made = torch.nn.Linear(len(t), 1)
    made.weight = torch.nn.Parameter(t.reshape(1, -1))
    return made


def _flat(values: list[Any]) -> list[Any]:
    return _flat(values[0]) if isinstance(values[0], list) else values


def test_a_write_past_torch_s_counts_is_copied(job: Job, tmp_path: Path) -> None:
    job.own.assign(AVERAGE)
    job.head()
    job.average.weight.data = torch.full((2, 3), 5.0)
    job.update()
    assert behind_update(tmp_path, 1) == [[5.0] * 3] * 2
    job.average.weight.data.mul_(2)
    job.head()
    assert at_head(tmp_path, 1) == [[10.0] * 3] * 2


def test_another_tensor_of_the_model_goes_with_them_once_a_step_was_seen_to_write_to_it_behind_its_update(
    job: Job,
) -> None:
    job.own.assign(AVERAGE[1:])
    assert job.head() == AVERAGE[1:]
    job.update()
    with torch.no_grad():
        job.average.weight.mul_(0.5)
    assert job.head() == AVERAGE[1:]
    assert job.step() == AVERAGE
    assert job.step() == AVERAGE


def test_a_tensor_that_is_not_there_any_more_ends_it(job: Job, tmp_path: Path) -> None:
    job.own.assign(AVERAGE)
    job.head()
    job.average.bias = None  # type: ignore[assignment]  # no module has to have one
    job.update()
    with pytest.raises(JournalError):
        behind_update(tmp_path, 1)
    assert job.head() == ()
    assert "module1.bias is not there at each head" in job.own.why_not
    with pytest.raises(JournalError):
        at_head(tmp_path, 0)


def test_a_variable_that_is_large_at_some_heads_alone_is_copied_at_these(job: Job, tmp_path: Path) -> None:
    """Where it is small it is in the journal by value."""
    path = "value.script.last"
    job.own.assign([path])
    carried = []
    for size in (20_000, 20, 20, 20_000, 0, 20_000, 20_000):
        if size:
            job.more["last"] = torch.full((size,), 1.0)
        else:
            del job.more["last"]
        carried.append(job.head())
        job.more["last"] = torch.full((2 * size,), 2.0)
        job.update()
        if job.own.carried:
            assert behind_update(tmp_path, job.boundary + 1, path) == [2.0] * 2 * size
    assert carried == [(path,), (), (), (path,), (), (path,), (path,)], job.own.why_not
    assert job.own.why_not == ""


def test_copies_that_take_too_much_of_a_step_are_not_made(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.own.assign(AVERAGE)
    clock = itertools.count(0.0, 0.01)  # each part of it seems to take 10 ms
    monkeypatch.setattr(own_tensors.time, "thread_time", lambda: next(clock))
    job.head()
    steps = 0
    while not job.own.why_not and steps < 30:
        job.step()
        steps += 1
    assert "more than a hundredth" in job.own.why_not
    assert steps > own_tensors._TIMED


def test_without_a_limit_of_cost_they_are_made_whatever_they_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, is_limited=False)
    job.own.assign(AVERAGE)
    clock = itertools.count(0.0, 0.01)
    monkeypatch.setattr(own_tensors.time, "thread_time", lambda: next(clock))
    job.head()
    for _ in range(2 * own_tensors._TIMED):
        carried = job.step()
    assert (set(carried), job.own.why_not) == (set(AVERAGE), "")


def test_a_large_state_is_not_copied_as_a_whole_in_the_first_steps_without_a_limit_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, is_limited=False)
    monkeypatch.setattr(own_tensors, "EARLY_BYTES", 8)
    assert job.head() == ()


def later(job: Job) -> Job:
    """Go on to where nobody copies all of a state."""
    job.own.assign(AVERAGE)
    job.boundary = own_tensors._EARLY_STEPS
    job.head()
    return job


def test_a_new_process_goes_on_with_what_the_lost_one_has_carried(job: Job, tmp_path: Path) -> None:
    later(job).step()
    content = job.average.weight.tolist()
    new = Job(tmp_path)
    new.boundary = job.boundary - 1
    with torch.no_grad():
        new.average.weight.zero_()
    copy = new.own.left(job.boundary, behind_update=False)
    copy.put({"module1.weight": new.average.weight.data, "module1.bias": new.average.bias.data})
    assert new.average.weight.tolist() == content
    new.own.go_on(AVERAGE, job.boundary, from_head=True)
    with torch.no_grad():
        new.average.bias.zero_()
    assert new.head() == AVERAGE
    assert at_head(tmp_path, new.boundary, "module1.bias") != [0, 0], "the copy stays: a further process may need it"
    new.own.assign(AVERAGE)
    assert (new.step(), new.own.changed) == (AVERAGE, False)
    assert at_head(tmp_path, new.boundary) == new.average.weight.tolist()


def test_a_process_that_has_its_tensors_in_another_way_copies_from_its_first_head_on_what_the_one_before_did(
    job: Job, tmp_path: Path
) -> None:
    later(job).step()
    new = Job(tmp_path)
    new.boundary = job.boundary - 1
    new.own.go_on_as_before(job.boundary)
    assert new.head() == AVERAGE
    assert at_head(tmp_path, new.boundary) == new.average.weight.tolist()
    other = Job(tmp_path)
    other.own.go_on_as_before(job.boundary + 7)
    other.boundary = job.boundary + 7
    assert other.head() == (), "no copy was left"


def test_what_an_earlier_process_has_left_behind_an_update_is_gone_once_another_one_updates(
    job: Job, tmp_path: Path
) -> None:
    """After a roll-back the step is another one of the same number."""
    later(job).update()
    behind_update(tmp_path, job.boundary + 1)
    new = Job(tmp_path)
    new.own.update_begins()
    with pytest.raises(JournalError):
        behind_update(tmp_path, job.boundary + 1)


def test_a_process_that_goes_through_a_step_as_a_shadow_leaves_the_lost_rank_s_copies_to_itself(
    job: Job, tmp_path: Path
) -> None:
    later(job).update()
    new = Job(tmp_path)
    new.own._engine.shadow = object()  # type: ignore[misc]  # a namespace stands for it
    new.own.update_begins()
    assert behind_update(tmp_path, job.boundary + 1) == job.average.weight.tolist()


def test_what_is_said_to_be_copied_at_the_head_of_entry_is_what_is_in_the_file(job: Job, tmp_path: Path) -> None:
    job.own.assign(AVERAGE)
    job.head()
    new = Job(tmp_path)
    new.boundary = job.boundary - 1
    new.own.go_on(AVERAGE, job.boundary, from_head=True)
    assert new.head() == AVERAGE
    assert new.step() == (*MODEL, *AVERAGE, *MOMENTA), "nobody has said yet what is its own"


def test_a_copy_of_an_earlier_process_counts_no_more_once_another_one_fills_its_place(job: Job, tmp_path: Path) -> None:
    job.own.assign(AVERAGE)
    job.head()
    job.step()
    new = Job(tmp_path)
    new.own.assign(MODEL)
    new.boundary = 1
    new.head()
    with pytest.raises(JournalError):
        at_head(tmp_path, 0)
    assert at_head(tmp_path, 2, "module0.weight") == new.model.weight.tolist()


def test_shared_memory_is_left_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    for number in range(2):
        job = Job(tmp_path / str(number))
        free_bytes = 4 * 3 * 2 * (job.average.weight.numel() + job.average.bias.numel()) * 4
        room = SimpleNamespace(f_bavail=free_bytes - (number == 0), f_frsize=1)
        monkeypatch.setattr(os, "statvfs", lambda _, room=room: room)
        job.own.assign(AVERAGE)
        assert (job.head() == AVERAGE) == bool(number), job.own.why_not


def test_gradients_that_may_turn_out_to_be_state_are_copied_and_not_promised(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.open_gradients = {GRADIENT: torch.full((2, 3), 5.0)}
    assert GRADIENT not in job.head()
    assert read(tmp_path, RANK, 0).views[GRADIENT].tolist() == [[5.0] * 3] * 2
    job.open_gradients = {GRADIENT: torch.full((2, 3), 6.0)}
    job.update()
    assert read(tmp_path, RANK, 1, behind_update=True).views[GRADIENT].tolist() == [[6.0] * 3] * 2


def test_copies_end_where_a_tensor_has_no_memory(job: Job) -> None:
    job.head()
    job.average.weight.untyped_storage().resize_(0)
    job.head()
    assert job.own.carried == ()
