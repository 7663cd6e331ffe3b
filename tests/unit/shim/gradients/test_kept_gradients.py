"""Gradients that a step adds to go back with it; where a script zeroes them, by whatever means, nothing is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.loop_script import LOST, LoopScript

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.gradients import gradient_fates, kept_gradients
from torchrelay.shim.tensors import digest

STEPS = 12
TRAINING = """
    import torch
    torch.manual_seed(3)
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last, self.unused = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1), torch.nn.Linear(2, 2)
        def forward(self, x):
            return self.last(torch.tanh(self.first(x)))
    model, other = Two(), torch.nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    second = torch.optim.SGD(other.parameters(), lr=0.1)
    seen = []
    def train():
        for number in range(STEPS):
            begin(number, model, optimizer, second)
            x = torch.randn(5, 3)
            for part in x.split(PARTS):
                backward(number, model(part).square().mean() + OTHER * other(part).square().mean(), model)
                between(number, model, optimizer, second)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if number in FAILS:
                fail()
            step(optimizer)
            optimizer.step()
            seen.append(norm.item())
            after(number, model, optimizer, second)
        return [p.detach().clone() for m in (model, other) for p in m.parameters()]
    done = train()
"""


def nothing(number: int, model: Any, *optimizers: Any) -> None: ...


def run(
    script: LoopScript,
    *,
    fails: tuple[int, ...] = (),
    broken: tuple[int, ...] = (),
    parts: int = 5,
    other: float = 0.5,
    **phases: Callable[..., None],
) -> tuple[list[float], list[torch.Tensor], LoopScript]:
    """`fails`: steps that are interrupted at their end, `broken`: those whose first backward is broken off."""
    engine, left = script.engine, [*broken]

    def backward(number: int, loss: torch.Tensor, model: Any) -> None:
        def breaks(gradient: torch.Tensor) -> None:
            if number in left:
                left.remove(number)
                raise RuntimeError(LOST)

        hook = model.first.weight.register_hook(breaks)
        engine.gradients.fates.before_backward()
        engine.step.computed_gradients()
        try:
            loss.backward()
        except RuntimeError as error:
            engine.interrupted(error)
        finally:
            hook.remove()
        engine.gradients.fates.after_backward()

    script.failures = len(fails)
    told = {"begin": nothing, "between": nothing, "after": nothing} | phases
    names = script.run(TRAINING, FAILS=fails, PARTS=parts, OTHER=other, STEPS=STEPS, backward=backward, **told)
    assert len(script.stood) == len(fails) + len(broken)
    return names["seen"], names["done"], script


@pytest.fixture
def other_script(script: LoopScript, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> LoopScript:
    (tmp_path / "other").mkdir()
    return LoopScript(monkeypatch, tmp_path / "other")


def parameters_of(optimizers: Any) -> list[torch.Tensor]:
    return [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]


def drop(number: int, model: Any, *optimizers: Any) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad()


def zero_in_place(number: int, model: Any, *optimizers: Any) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=False)


def zero_by_hand(number: int, model: Any, *optimizers: Any) -> None:
    for parameter in parameters_of(optimizers):
        if parameter.grad is not None:
            parameter.grad.zero_()


def drop_by_hand(number: int, model: Any, *optimizers: Any) -> None:
    for parameter in parameters_of(optimizers):
        parameter.grad = None


def decay(number: int, model: Any, *optimizers: Any) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(0.5)


def drop_each_third(number: int, model: Any, *optimizers: Any) -> None:
    if number % 3 == 2:
        drop(number, model, *optimizers)


def zero_from_the_unused_on(number: int, model: Any, *optimizers: Any) -> None:
    """Zeros for parameters that never get a gradient: an optimizer treats them otherwise than such as have none."""
    for parameter in model.unused.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    zero_in_place(number, model, *optimizers)


def keep_from_the_eighth(number: int, model: Any, *optimizers: Any) -> None:
    if number < 8:
        drop(number, model, *optimizers)


KEEPING = [
    pytest.param({}, id="never zeroed"),
    pytest.param({"after": drop_each_third}, id="zeroed in each third step"),
    pytest.param({"begin": drop_each_third}, id="zeroed at the beginning of each third"),
    pytest.param({"after": decay}, id="scaled after the step"),
    pytest.param({"begin": decay}, id="scaled at its beginning"),
    pytest.param({"after": keep_from_the_eighth}, id="kept from the eighth step on"),
    pytest.param({"begin": keep_from_the_eighth}, id="zeroed at the beginning before the eighth"),
]
SHEDDING = [
    pytest.param({"begin": drop}, id="dropped at the beginning"),
    pytest.param({"after": drop}, id="dropped at the end"),
    pytest.param({"begin": zero_in_place}, id="zeroed at the beginning"),
    pytest.param({"after": zero_in_place}, id="zeroed at the end"),
    pytest.param({"begin": zero_by_hand}, id="by hand"),
    pytest.param({"after": zero_by_hand}, id="by hand at the end"),
    pytest.param({"begin": drop_by_hand}, id="dropped by hand"),
    pytest.param({"begin": zero_from_the_unused_on}, id="with zeros for what is not used"),
    pytest.param({"after": zero_from_the_unused_on}, id="with such at the end"),
]


@pytest.mark.parametrize("phases", [*KEEPING, *SHEDDING])
@pytest.mark.parametrize("parts", [5, 2])
def test_steps_that_are_done_again_give_the_same(
    phases: dict[str, Any], parts: int, script: LoopScript, other_script: LoopScript
) -> None:
    norms, weights, _ = run(script, parts=parts, **phases)
    broken = (0, 1, 3, 9) if phases.get("begin") is not decay else (3, 9)
    again, found, _ = run(other_script, parts=parts, fails=(2, 6, 10), broken=broken, **phases)
    assert again == norms
    assert all(torch.equal(a, b) for a, b in zip(found, weights, strict=True))


@pytest.mark.parametrize("phases", SHEDDING)
@pytest.mark.parametrize("parts", [5, 2])
def test_whoever_zeroes_them_pays_nothing(
    phases: dict[str, Any], parts: int, script: LoopScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    plain = gradient_fates.are_zero

    def counted(tensors: list[torch.Tensor]) -> list[bool]:
        if tensors:
            looked.append(script.engine.step.gates_passed)
        return plain(tensors)

    monkeypatch.setattr(gradient_fates, "are_zero", counted)
    run(script, parts=parts, **phases)
    assert script.engine.gradients.tensors() == {}
    assert script.engine.gradients.copied_bytes == 0
    assert {*looked} <= {0, 1, 2, 3, 4, 8}
    assert not [sent for sent in script.sent if type(sent).__name__ == "Disabled"]


@pytest.mark.parametrize("phases", KEEPING)
def test_whoever_keeps_them_is_told_what_it_costs(phases: dict[str, Any], script: LoopScript) -> None:
    _, weights, _ = run(script, **phases)
    unused = 6
    assert script.engine.gradients.most_copied_bytes == 4 * (sum(w.numel() for w in weights) - unused)
    reports = [r for r in script.sent if type(r).__name__ == "Report"]
    assert any("are kept across optimizer steps" in note for note in reports[-1].notes)


def in_turn(order: tuple[int, int], zero: Callable[..., None]) -> str:
    first, last = ("fake", "real") if order == (0, 1) else ("real", "fake")
    return f"""
    import torch
    torch.manual_seed(3)
    generator, discriminator = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
    of_g = torch.optim.SGD(generator.parameters(), lr=0.1)
    of_d = torch.optim.SGD(discriminator.parameters(), lr=0.1)
    def fake(x):
        zero(of_g)
        backward(discriminator(generator(x)).mean())
        if FAILS: fail()
        step(of_g)
        of_g.step()
    def real(x):
        zero(of_d)
        backward(discriminator(x).square().mean() - discriminator(generator(x).detach()).mean())
        step(of_d)
        of_d.step()
    def train():
        for number in range(8):
            x = torch.randn(4, 3)
            {first}(x)
            {last}(x)
    train()
    """


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_models_in_turn_pay_nothing(order: tuple[int, int], script: LoopScript) -> None:
    def backward(loss: torch.Tensor) -> None:
        script.engine.gradients.fates.before_backward()
        script.engine.step.computed_gradients()
        loss.backward()
        script.engine.gradients.fates.after_backward()

    script.run(in_turn(order, drop), FAILS=(), backward=backward, zero=lambda o: o.zero_grad())
    assert script.engine.gradients.tensors() == {}


def test_the_first_step_that_adds_to_them_after_many_cannot_be_done_again(script: LoopScript) -> None:
    with pytest.raises(StateMismatchError, match=r"gradients are kept across optimizer steps \(module0\."):
        run(script, broken=(8,), begin=keep_from_the_eighth)


def test_one_that_was_added_to_by_a_graph_of_its_own_gradient_is_kept(script: LoopScript) -> None:
    model = torch.nn.Linear(3, 1)
    weight = model.weight
    found = kept_gradients.KeptGradients()
    state = state_of(model)
    weight.square().sum().backward()
    found.at_boundary(state, 0)
    before = weight.grad
    found.fates.before_backward()
    with pytest.warns(UserWarning, match="create_graph"):
        weight.square().sum().backward(create_graph=True)
    found.fates.after_backward()
    assert weight.grad is not before
    found.at_boundary(state, 1)
    assert [*found.tensors()] == ["gradient.module0.weight"]
    weight.grad = None


def test_a_gradient_that_an_update_uses_as_it_was_is_kept() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found, state = kept_gradients.KeptGradients(), state_of(model, optimizer)
    model(torch.ones(2, 3)).sum().backward()
    found.at_boundary(state, 0)
    found.fates.before_backward()
    found.fates.after_backward()
    found.fates.used_by(optimizer)
    found.at_boundary(state, 1)
    assert [*found.tensors()] == ["gradient.module0.weight", "gradient.module0.bias"]


@pytest.mark.parametrize("is_behind_the_gate", [False, True])
def test_one_that_the_script_logs_before_it_drops_it_is_kept(is_behind_the_gate: bool) -> None:
    model = torch.nn.Linear(3, 1)
    found, state = kept_gradients.KeptGradients(), state_of(model)
    model(torch.ones(2, 3)).sum().backward()
    found.at_boundary(state, 0)
    assert model.weight.grad is not None
    if is_behind_the_gate:
        found.fates.before_backward()
        found.fates.after_backward()
        found.at_gate()
        found.passed()
    model.weight.grad.norm().item()
    model.zero_grad()
    found.fates.settle()
    model(torch.ones(2, 3)).sum().backward()
    found.at_boundary(state, 1)
    found.fates.step_ends()
    assert [*found.tensors()] == ["gradient.module0.weight"]


def test_digests_and_copies_of_ours_are_no_use_of_the_scripts() -> None:
    model = torch.nn.Linear(300, 100)
    found, state = kept_gradients.KeptGradients(), state_of(model)
    for boundary in range(3):
        model(torch.ones(2, 300)).sum().backward()
        found.at_boundary(state, boundary)
        found.to_give()
        assert digest.digests({"weight": model.weight.grad}) != {}
        model.zero_grad()
        found.fates.before_backward()
        found.fates.after_backward()
    found.fates.step_ends()
    assert found.tensors() == {}


def test_one_that_the_script_has_logged_can_be_put_back() -> None:
    model = torch.nn.Linear(3, 1)
    found, state = kept_gradients.KeptGradients(), state_of(model)
    model(torch.ones(2, 3)).sum().backward()
    found.at_boundary(state, 0)
    assert model.weight.grad is not None
    before = model.weight.grad.numpy().copy()
    model.zero_grad()
    found.fates.settle()
    found.put_back()
    found.fates.step_ends()
    assert model.weight.grad is not None
    assert (model.weight.grad.numpy() == before).all()


def state_of(model: torch.nn.Module, *optimizers: torch.optim.Optimizer) -> Any:
    from torchrelay.shim.capture.models.modules import ModuleTrees
    from torchrelay.shim.capture.walks.walk import Walk

    return Walk(ModuleTrees()).run([], {"script": {"model": model, "optimizers": [*optimizers]}})
