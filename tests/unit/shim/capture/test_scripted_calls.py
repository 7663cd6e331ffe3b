"""What a function of TorchScript computes depends on its earlier calls; these can be had again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from support.scripted_modules import Counting, gelu, scripted

from torchrelay.protocol.errors import StateMismatchError, UnsupportedError
from torchrelay.shim.adapters.torchscript import functions
from torchrelay.shim.capture import rng
from torchrelay.shim.capture.scripted_calls import ScriptedCalls

CALLS = 5


@pytest.fixture
def calls() -> Iterator[ScriptedCalls]:
    made = ScriptedCalls()
    functions.watch(made.called)
    yield made
    functions.watch(lambda *_: None)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.linspace(-3, 3, 400).view(4, 100).repeat(4, 1)


def gradient(function: Any, x: torch.Tensor) -> bytes:
    entry, bias = x.clone().requires_grad_(), torch.linspace(-1, 1, 100).requires_grad_()
    function(entry, bias).sin().sum().backward()
    assert entry.grad is not None
    return entry.grad.numpy().tobytes()


def fresh(function: Any, x: torch.Tensor) -> list[bytes]:
    functions.forget_compiled(function)
    return [gradient(function, x) for _ in range(CALLS)]


def test_the_first_call_rounds_otherwise(calls: ScriptedCalls, x: torch.Tensor) -> None:
    found = fresh(scripted(gelu), x)
    assert found[0] != found[1], "without this all else here would be for nothing"
    assert len({*found[1:]}) == 1


def test_under_the_old_executor_calls_do_not_depend_on_earlier_ones(
    calls: ScriptedCalls, x: torch.Tensor, request: pytest.FixtureRequest
) -> None:
    for put in (torch._C._jit_set_profiling_mode, torch._C._jit_set_profiling_executor):
        request.addfinalizer(partial(put, put(False)))
    function = scripted(gelu)
    assert len({*fresh(function, x)}) == 1
    assert len({*fresh(function, x)}) == 1, "forgetting is refused by torch there, and nothing has to be forgotten"


@pytest.mark.parametrize("count", range(CALLS))
def test_a_process_that_goes_back_computes_what_it_had_computed(
    count: int, calls: ScriptedCalls, x: torch.Tensor
) -> None:
    function = scripted(gelu)
    undisturbed = fresh(function, x)
    functions.forget_compiled(function)
    calls.take_over(b"")
    marks = []
    for _ in range(CALLS):
        marks.append(len(calls))
        gradient(function, x)
    calls.go_back(marks[count])
    assert [gradient(function, x) for _ in range(CALLS - count)] == undisturbed[count:]


@pytest.mark.parametrize("count", range(CALLS))
def test_another_process_computes_what_the_recorded_one_would(
    count: int, calls: ScriptedCalls, x: torch.Tensor
) -> None:
    function = scripted(gelu)
    undisturbed = fresh(function, x)
    functions.forget_compiled(function)
    calls.take_over(b"")
    for _ in range(count):
        gradient(function, x)
    written = calls.written()
    functions.forget_compiled(function)
    other = ScriptedCalls()
    functions.watch(other.called)
    with torch.no_grad():
        function(x, x[0])  # its own set-up has called it otherwise
    other.take_over(written)
    assert [gradient(function, x) for _ in range(CALLS - count)] == undisturbed[count:]
    assert len(other) >= count if count < 3 else len(other) == 3


def test_only_calls_that_have_an_effect_are_kept(calls: ScriptedCalls, x: torch.Tensor) -> None:
    function = scripted(gelu)
    for _ in range(9):
        gradient(function, x)
    assert len(calls) == 3
    gradient(function, x[:2])
    assert len(calls) == 3, "another size is compiled alike on a processor"
    with torch.no_grad():
        function(x, x[0])
    assert len(calls) == 4


def test_repeating_leaves_modules_and_generators_as_they_are(calls: ScriptedCalls) -> None:
    module = scripted(Counting())
    for _ in range(3):
        module(torch.randn(4, 3)).sum().backward()
    module.eval()
    held = [module.mean, module._modules["inner"].running_mean]
    before = [t.clone() for t in held], module.count, module.seen, module.training
    generators = rng.capture()
    gradients = [p.grad.clone() for p in module.parameters()]
    calls.go_back(1)
    assert module.mean is held[0]
    now = [t.clone() for t in held], module.count, module.seen, module.training
    assert rng.same(rng.capture(), generators)
    assert all(map(torch.equal, before[0], now[0]))
    assert before[1:] == now[1:]
    assert all(torch.equal(p.grad, g) for p, g in zip(module.parameters(), gradients))


def test_a_module_without_a_bias_can_be_called_again(calls: ScriptedCalls) -> None:
    module: Any = scripted(torch.nn.Linear(4, 4, bias=False))
    for _ in range(2):
        module(torch.ones(2, 4)).sum().backward()
    before = module.weight.grad.clone()
    calls.go_back(1)
    assert torch.equal(module.weight.grad, before)


def test_what_tracing_leaves_behind_is_not_told(calls: ScriptedCalls, x: torch.Tensor) -> None:
    function = scripted(gelu)
    gradient(function, x)
    assert calls.written()
    del function
    again = ScriptedCalls()
    again.take_over(calls.written())
    assert len(again) == 0


def test_a_function_that_is_not_there_is_an_error(calls: ScriptedCalls, x: torch.Tensor) -> None:
    function = scripted(gelu)
    gradient(function, x)
    written = calls.written()
    del function
    with pytest.raises(StateMismatchError, match="has not compiled __torch__"):
        ScriptedCalls().take_over(written)


def test_a_torch_that_cannot_forget_is_not_supported_once_a_function_is_called(
    calls: ScriptedCalls, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functions, "_FLUSH", "not_there")
    with pytest.raises(UnsupportedError, match="a ScriptFunction cannot be compiled anew"):
        gradient(scripted(gelu), x)


def test_arguments_of_all_kinds_are_made_up(calls: ScriptedCalls) -> None:
    module = scripted(_Several())
    rows, mask = torch.tensor([0, 2, 1]), torch.tensor([True, False, True])
    module(rows, [torch.randn(3), torch.randn(3)], 2, 0.5, None, mask=mask)
    written = calls.written()
    other = ScriptedCalls()
    other.take_over(written)
    assert other.written() == written


class _Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class _OfPair(torch.nn.Module):
    def forward(self, pair: _Pair) -> torch.Tensor:
        return pair.first * pair.second


def test_a_named_tuple_is_given_as_a_plain_one(calls: ScriptedCalls) -> None:
    module = scripted(_OfPair())
    module(_Pair(torch.randn(2), torch.randn(2)))
    other = ScriptedCalls()
    other.take_over(calls.written())
    assert len(other) == 1


class _Several(torch.nn.Module):
    def forward(
        self,
        rows: torch.Tensor,
        parts: list[torch.Tensor],
        times: int,
        share: float,
        extra: torch.Tensor | None,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        found = parts[0][rows] * share
        for _ in range(times):
            found = found + parts[1]
        return found[mask] if extra is None else extra
