from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchrelay.shim.bootstrap import torch_hooks


def test_a_fault_in_backward_strikes_at_its_end_where_the_middle_parameter_gets_no_gradient() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    struck: list[bool] = []

    def inject(phase: str) -> None:
        struck.append(model[0].weight.grad is not None)  # type: ignore[index]  # declared wider than it is here

    engine: Any = SimpleNamespace(faults=SimpleNamespace(armed=True), commit=object(), wrapped=[model], inject=inject)
    with torch_hooks._backward_fault(engine):
        model(torch.ones(1, 2)).sum().backward()
    assert struck[0] is False, "between gradients, where there are some"
    struck.clear()
    with torch_hooks._backward_fault(SimpleNamespace(**{**vars(engine), "wrapped": [torch.nn.Linear(2, 2)]})):  # type: ignore[arg-type]  # a stand-in
        pass
    assert len(struck) == 1


def test_a_closure_is_called_with_what_its_optimizer_gives_it() -> None:
    gates: list[torch.optim.Optimizer] = []
    whole = SimpleNamespace(begins=lambda *_, **__: False, told=lambda result: result, open=False)
    engine = SimpleNamespace(
        updates=SimpleNamespace(whole=whole, before_step=lambda frame, optimizer: gates.append(optimizer)),
        guard=SimpleNamespace(tell=lambda act, *args, **named: act(*args, **named)),
        reporter=SimpleNamespace(evaluated_again=lambda frame: None),
        takes_part=lambda: True,
    )
    runtime: Any = SimpleNamespace(engine=engine)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])

    def closure(scale: float, *, sync: bool = True) -> tuple[float, bool]:
        """Say how it was called."""
        return scale, sync

    _, kwargs = torch_hooks._before_step(runtime, optimizer, (optimizer,), {"closure": closure})
    gated = kwargs["closure"]
    assert (gated(2.0, sync=False), gated(1.0)) == ((2.0, False), (1.0, True))
    assert gated.__doc__ == closure.__doc__
    assert gates == [optimizer]


@pytest.mark.parametrize(
    ("mode", "has_buffers", "is_confirmed"), [("repeat", True, True), ("repeat", False, False), ("record", True, False)]
)
def test_buffers_that_a_forward_takes_from_rank_0_behind_the_gate_are_confirmed(
    mode: str, has_buffers: bool, is_confirmed: bool
) -> None:
    """An aborted broadcast leaves garbage in them, and by the next boundary they are state. Before the gate the step undoes it."""
    broken = RuntimeError("Connection closed: generation 0 was broken")
    garbage, interruptions, calls = [broken], [], []

    def confirm() -> None:
        if garbage:
            raise garbage.pop()

    engine: Any = SimpleNamespace(
        takes_part=lambda: True,
        mode=lambda: mode,
        shadow=None,
        way_in=None,
        layouts=SimpleNamespace(forward_begins=lambda wrapped: None),
        wrapped=SimpleNamespace(takes_indices=lambda wrapped: False),
        inject=lambda phase: None,
        may_wait=lambda on: None,
        confirm=confirm,
        interrupted=interruptions.append,
    )
    wrapped = SimpleNamespace(will_sync_module_buffers=lambda: has_buffers)
    torch_hooks._guarded_forward(engine, wrapped, lambda: calls.append("forward"))
    assert interruptions == ([broken] if is_confirmed else [])
    assert calls == ["forward"] * (2 if is_confirmed else 1)
