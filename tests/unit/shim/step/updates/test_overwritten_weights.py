"""Which weights are copied before they are overwritten behind an update, and what the copies hold."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from support.host_state import take

from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.step.updates import overwritten_weights
from torchrelay.shim.step.updates.overwritten_weights import OverwrittenWeights


class Job:
    def __init__(self) -> None:
        self.model = torch.nn.Linear(2, 1)
        self.average = torch.nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.trees = ModuleTrees()
        self.copies = OverwrittenWeights(lambda act, *given: act(*given))

    def update(self) -> None:
        self.copies.note(take({"model": self.model, "average": self.average, "optimizer": self.optimizer}, self.trees))

    def overwrite(self, *targets: torch.Tensor) -> None:
        self.copies.about_to_overwrite(targets)
        with torch.no_grad():
            for target in targets:
                target.fill_(9.0)

    def held(self) -> dict[str, Any]:
        return {path: copy.tolist() for path, copy in self.copies.tensors().items()}


@pytest.fixture
def job() -> Job:
    made = Job()
    with torch.no_grad():
        for parameter in made.model.parameters():
            parameter.fill_(1.0)
    return made


def test_what_the_update_left_is_held_whichever_way_it_is_overwritten(job: Job) -> None:
    job.update()
    job.overwrite(job.model.weight.data)
    job.overwrite(job.model.weight, job.model.bias.detach())
    assert job.held() == {"module0.weight": [[1.0, 1.0]], "module0.bias": [1.0]}


def test_an_average_and_a_part_of_the_weights_are_not_copied(job: Job) -> None:
    job.update()
    job.overwrite(job.average.weight, job.model.weight.data[0, 1:], torch.zeros(3))
    job.copies.about_to_overwrite([torch.eye(2).to_sparse(), None])
    assert job.held() == {}


def test_before_an_update_and_behind_the_next_head_nothing_is_copied(job: Job) -> None:
    job.overwrite(job.model.weight)
    job.update()
    job.copies.look_no_more()
    job.overwrite(job.model.weight)
    assert job.held() == {}


def test_the_copies_are_there_until_the_next_gate(job: Job) -> None:
    job.update()
    job.overwrite(job.model.bias)
    job.copies.look_no_more()
    assert job.held() == {"module0.bias": [1.0]}
    job.copies.gate_passed()
    assert job.held() == {}


def test_the_latest_update_counts(job: Job) -> None:
    job.update()
    job.overwrite(job.model.bias)
    job.update()
    assert job.held() == {}
    job.overwrite(job.model.bias)
    assert job.held() == {"module0.bias": [9.0]}


def test_another_thread_s_writes_are_not_the_step_s(job: Job) -> None:
    job.update()
    thread = threading.Thread(target=job.overwrite, args=(job.model.bias,))
    thread.start()
    thread.join()
    assert job.held() == {}


def test_weights_that_are_too_large_together_have_no_copy(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overwritten_weights, "MOST_BYTES", 8)
    job.update()
    job.overwrite(job.model.weight)
    assert job.held() == {"module0.weight": [[1.0, 1.0]]}
    job.overwrite(job.model.bias)
    assert job.held() == {}


def test_a_parameter_that_was_given_other_memory_is_not_taken_for_what_is_at_its_old_one(job: Job) -> None:
    job.update()
    job.overwrite(job.model.bias)
    old = job.model.weight.data
    job.model.weight.data = torch.zeros(1, 2)
    job.overwrite(old)
    assert job.held() == {"module0.bias": [1.0]}
