"""Which updates are looked behind, and what is told of them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import torch
from support.host_state import take

from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import encode
from torchrelay.shim.capture.state.change_detection import WalkAnew
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.walks.rewalk import Rewalk
from torchrelay.shim.step.updates import update_effects
from torchrelay.shim.step.updates.update_effects import UpdateEffects, Within


class Steps:
    def __init__(self) -> None:
        self.names: dict[str, Any] = {"scale": 1.0, "count": 0}
        self.trees, self.effects = ModuleTrees(), UpdateEffects()
        self.boundary: HostState | None = None
        self.walks: list[str] = []

    def step(self, *updates: Callable[[], object]) -> dict[str, tuple[Any, Any]]:
        """Return what is told before the next gate, by path."""
        self.boundary = self.go_on(at_gate=False)
        encode.encode(self.boundary)
        self.effects.at_boundary(self.boundary)
        at_gate = self.go_on(at_gate=True)
        encode.encode(at_gate)
        self.effects.at_gate(at_gate)
        self.effects.gate_passed()
        for number, update in enumerate(updates or (self.count,)):
            update()
            self.effects.note(self.boundary, self.walk, is_last=number == len(updates or (0,)) - 1)
        latest = self.effects.latest()
        return {way[1]: effect[:2] for way, effect in pickle.loads(latest).items()} if latest else {}

    def walk(self, within: Within) -> HostState:
        self.walks.append("everywhere" if within is None else "within")
        return self.go_on(at_gate=True, within=within)

    def go_on(self, *, at_gate: bool, within: Within = None) -> HostState:
        if self.boundary is not None:
            try:
                return Rewalk(self.trees, self.boundary, at_gate=at_gate, within=within).run([], {"script": self.names})
            except WalkAnew:
                assert within is None
        return take(self.names, self.trees)

    def count(self) -> None:
        self.names["count"] += 1

    def adapt(self) -> None:
        self.names["scale"] *= 0.5


def test_the_first_updates_are_looked_behind_and_then_some_if_they_only_count() -> None:
    steps = Steps()
    for _ in range(update_effects._LOOK_EACH + 1):
        steps.step()
    assert len(steps.walks) == update_effects._FIRST_UPDATES + 1
    assert steps.effects.known() == b""


def test_what_the_first_update_makes_is_no_reason_to_look_behind_each() -> None:
    """Such as the mark that a scheduler leaves at an optimizer, or the state of one that keeps its counts in numbers."""
    steps = Steps()
    steps.step(lambda: steps.names.update(called=True, steps=1))
    for _ in range(10):
        steps.step()
    assert len(steps.walks) == update_effects._FIRST_UPDATES


def test_optimizers_of_torch_with_a_scheduler_are_not_looked_behind_each_time() -> None:
    steps = Steps()
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    steps.names = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        steps.step(optimizer.step)
        scheduler.step()
    assert len(steps.walks) == update_effects._FIRST_UPDATES


def test_a_tensor_that_each_update_makes_anew_is_looked_for_each_time() -> None:
    steps = Steps()
    for _ in range(10):
        steps.names.pop("found", None)
        steps.step(lambda: steps.names.update(found=torch.zeros(1)))
    assert len(steps.walks) == 10
    assert {(way[1], more) for way, more in steps.effects.changed_before} == {("script.found", False)}


def test_once_one_has_left_more_each_one_is_looked_behind() -> None:
    steps = Steps()
    for _ in range(10):
        steps.step(steps.adapt)
    assert len(steps.walks) == 10


def test_what_an_update_has_changed_is_told_with_what_was_there_before() -> None:
    steps = Steps()
    assert steps.step(steps.adapt) == {"script.scale": ((1.0,), (0.5,))}
    assert steps.step(steps.adapt, steps.count) == {"script.scale": ((0.5,), (0.25,)), "script.count": ((0,), (1,))}


def test_all_updates_of_a_step_are_told_together() -> None:
    steps = Steps()
    steps.step(steps.adapt)
    assert steps.step(steps.adapt, steps.adapt)["script.scale"] == ((0.5,), (0.125,))


def test_what_earlier_updates_have_changed_is_told_when_this_one_leaves_it_as_it_was() -> None:
    steps = Steps()
    steps.step(steps.adapt)
    assert steps.step() == {"script.scale": ((0.5,), (0.5,)), "script.count": ((0,), (1,))}


def test_nothing_is_told_between_a_gate_and_the_end_of_the_update_behind_it() -> None:
    steps = Steps()
    steps.step(steps.adapt)
    steps.effects.at_gate(take(steps.names, steps.trees))
    assert steps.effects.latest()  # others may still be behind the gate before
    steps.effects.gate_passed()
    assert not steps.effects.latest()


def test_no_look_is_another_answer_than_no_change() -> None:
    steps = Steps()
    for _ in range(update_effects._FIRST_UPDATES):
        steps.step()
    steps.step()
    assert steps.effects.latest() == b""
    steps = Steps()
    steps.step(lambda: None)
    assert pickle.loads(steps.effects.latest()) == {}


def test_a_process_that_takes_over_a_rank_knows_what_updates_have_changed_and_looks_behind_each() -> None:
    steps = Steps()
    steps.step(steps.adapt, steps.count)
    successor = Steps()
    successor.effects.take_over(steps.effects.known())
    assert {(way[1], more) for way, more in successor.effects.changed_before} == {("script.scale", True)}
    for _ in range(10):
        successor.step()
    assert len(successor.walks) == 10
    assert successor.effects.known() == steps.effects.known()


class Adapting(torch.optim.SGD):
    """Keeps a step size that it computes, and a momentum of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.scale, self.own, self.late = 1.0, {"momentum": torch.zeros(2)}, {}

    def adapt(self) -> None:
        self.scale *= 0.5
        self.own["momentum"] = self.own["momentum"] + 1


def with_optimizer() -> Steps:
    steps = Steps()
    optimizer = Adapting(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    steps.names = {"optimizer": optimizer, "others": [{"n": n} for n in range(9)], "holder": {}}
    for _ in range(update_effects._FIRST_UPDATES + 1):
        steps.step(optimizer.adapt)
    return steps


def test_later_walks_go_to_what_optimizers_lead_to_alone_and_tell_the_same() -> None:
    steps = with_optimizer()
    optimizer = steps.names["optimizer"]
    found = steps.step(optimizer.adapt)
    assert steps.walks[-2:] == ["within"] * 2
    assert found["script.optimizer.scale"] == ((2**-5,), (2**-6,))
    (after,) = found["script.optimizer.own['momentum']"][1]
    assert torch.frombuffer(bytearray(after.data), dtype=torch.float32).tolist() == [6.0, 6.0]


def test_what_an_optimizer_begins_to_keep_is_told_at_once() -> None:
    steps = with_optimizer()
    late = steps.names["optimizer"].late
    assert steps.step(lambda: late.update(bound=[0.5]))["script.optimizer.late['bound']"] == ((), ([0.5],))
    assert steps.step(lambda: late["bound"].append(1.5))["script.optimizer.late['bound']"] == (([0.5],), ([0.5, 1.5],))
    assert steps.walks[-2:] == ["within"] * 2


def test_what_an_optimizer_has_got_since_a_boundary_without_an_update_is_looked_for() -> None:
    steps = with_optimizer()
    optimizer, bound = steps.names["optimizer"], {"norm": 1.0}
    optimizer.late["bound"] = bound
    steps.boundary = steps.go_on(at_gate=False)  # its loop ends without an update
    encode.encode(steps.boundary)
    steps.effects.at_boundary(steps.boundary)
    found = steps.step(lambda: bound.update(norm=2.0))
    assert found["script.optimizer.late['bound']['norm']"] == ((1.0,), (2.0,))
    assert steps.walks[-1] == "within"


def test_what_an_update_was_seen_to_change_elsewhere_is_looked_for() -> None:
    steps = Steps()
    steps.names = {**with_optimizer().names, "holder": {"norm": 1.0}}
    holder, optimizer = steps.names["holder"], steps.names["optimizer"]

    def update() -> None:
        optimizer.adapt()
        holder["norm"] *= 2
        holder["made"] = torch.full((1,), holder["norm"])

    for _ in range(8):
        found = steps.step(update)
        assert found["script.holder['norm']"][1] == (holder["norm"],)
        assert "script.holder['made']" in found
    assert steps.walks[-1] == "within"


def test_each_so_many_th_walk_goes_everywhere() -> None:
    steps = with_optimizer()
    others = steps.names["others"]
    for _ in range(update_effects._LOOK_EACH - update_effects._FIRST_UPDATES):
        found = steps.step(lambda: others[3].update(n=0.5))
        others[3]["n"] = 3
    assert found["script.others[3]['n']"] == ((3,), (0.5,))
    assert steps.walks.count("everywhere") == update_effects._FIRST_UPDATES + 1
    assert steps.step(lambda: others[3].update(n=0.5))["script.others[3]['n']"] == ((3,), (0.5,)), "known from then on"
