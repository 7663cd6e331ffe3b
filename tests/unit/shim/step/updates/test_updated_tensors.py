"""Which small tensors are copied right behind an update, and what the copies hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.host_state import take

from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.step.updates import updated_tensors
from torchrelay.shim.step.updates.updated_tensors import SMALL_BYTES, UpdatedTensors


class Steps:
    def __init__(self) -> None:
        self.model = torch.nn.Module()
        self.model.scale = torch.nn.Parameter(torch.ones(()))
        self.model.other = torch.nn.Parameter(torch.ones(3))
        self.model.large = torch.nn.Parameter(torch.ones(SMALL_BYTES // 4 + 1))
        self.trees = ModuleTrees()
        self.copies = UpdatedTensors()
        self.more: dict[str, Any] = {}
        self.write: Callable[[torch.nn.Parameter], object] = lambda parameter: parameter.data.mul_(0.5)

    def step(self, written: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return what the copies hold before the next head. The update adds 1, and what follows it halves."""
        self.copies.begin_step()
        state = take({**self.more, "model": self.model}, self.trees)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(1)
        self.copies.note(state)
        for name in written:
            self.write(getattr(self.model, name))
        return {path: copy.tolist() for path, copy in self.copies.tensors().items()}


@pytest.fixture
def steps() -> Iterator[Steps]:
    made = Steps()
    yield made
    made.copies.look_no_more()


def after_first_steps(steps: Steps, *written: str) -> dict[str, Any]:
    for _ in range(updated_tensors._FIRST_UPDATES):
        steps.step(written)
    return steps.step(written)


def test_all_small_ones_are_copied_in_the_first_steps(steps: Steps) -> None:
    assert steps.step() == {"module0.scale": 2.0, "module0.other": [2.0, 2.0, 2.0]}


def test_what_has_no_memory_at_the_moment_is_left_out(steps: Steps) -> None:
    """fully_shard lets go of what it has gathered; to read it would end the process."""
    steps.copies.begin_step()
    state = take({"model": steps.model}, steps.trees)
    steps.model.other.untyped_storage().resize_(0)  # type: ignore[operator]  # declared wider than it is
    steps.copies.note(state)
    assert [*steps.copies.tensors()] == ["module0.scale"]


def test_only_those_that_were_written_behind_an_update_are_copied_later_with_what_the_update_has_left(
    steps: Steps,
) -> None:
    found = after_first_steps(steps, "scale", "large")
    assert found.keys() == {"module0.scale"}
    assert found["module0.scale"] == 2 * steps.model.scale.item()


def counted(parameter: torch.nn.Parameter) -> None:
    with torch.no_grad():
        parameter.clamp_(-100, 100)


def swapped(parameter: torch.nn.Parameter) -> None:
    parameter.data = parameter.data * 1


@pytest.mark.parametrize("write", [counted, swapped, lambda parameter: parameter.data.clamp_(-100, 100)])
def test_writes_count_that_change_nothing(write: Callable[[torch.nn.Parameter], object], steps: Steps) -> None:
    steps.write = write
    assert after_first_steps(steps, "other").keys() == {"module0.other"}


def test_heads_without_an_update_take_no_look(steps: Steps) -> None:
    """Of loops that go round before the first update, or of steps that add to their gradients."""
    for _ in range(updated_tensors._FIRST_UPDATES):
        steps.copies.begin_step()
    steps.step(("scale",))
    assert steps.step(("scale",)).keys() == {"module0.scale", "module0.other"}
    assert after_first_steps(steps).keys() == {"module0.scale"}


def test_without_such_writes_nothing_is_copied(steps: Steps) -> None:
    assert after_first_steps(steps) == {}


def test_a_write_that_comes_later_is_seen_in_one_of_the_next_steps(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updated_tensors, "_LOOK_EACH", 8)
    after_first_steps(steps)
    for _ in range(8):
        steps.step(("other",))
    assert steps.step(("other",)).keys() == {"module0.other"}


def test_a_tensor_keeps_its_copy_when_another_model_comes_before_its_own(steps: Steps) -> None:
    after_first_steps(steps, "scale")
    steps.copies._paths.add("module1.scale")  # as the look that follows finds it
    steps.more["another"] = torch.nn.Linear(2, 2)
    found = steps.step(("scale",))
    assert found == {"module1.scale": 2 * steps.model.scale.item()}


def test_nothing_of_the_step_before_is_given_once_a_gate_is_passed(steps: Steps) -> None:
    after_first_steps(steps, "scale")
    steps.copies.begin_step()
    assert steps.copies.tensors() != {}
    steps.copies.gate_passed()
    assert steps.copies.tensors() == {}


def test_no_more_is_copied_than_the_limit(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updated_tensors, "MOST_BYTES", 12)
    assert len(steps.step()) == 1
