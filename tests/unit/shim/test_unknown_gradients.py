from __future__ import annotations

import pytest
import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.unknown_gradients import UnknownGradients


@pytest.fixture
def parameter() -> torch.nn.Parameter:
    made = torch.nn.Parameter(torch.ones(2))
    made.grad = torch.ones(2)
    return made


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_may_be_dropped(parameter: torch.nn.Parameter, to_none: bool) -> None:
    assert parameter.grad is not None
    optimizer = torch.optim.SGD([parameter])
    with UnknownGradients([parameter.grad]):
        optimizer.zero_grad(set_to_none=to_none)
    assert (parameter.grad is None) == to_none


def test_nobody_reads_them(parameter: torch.nn.Parameter) -> None:
    assert parameter.grad is not None
    with UnknownGradients([parameter.grad]):
        (torch.ones(2) * 2).sum().item()
        with pytest.raises(StateMismatchError, match="reads gradients after its optimizer step"):
            parameter.grad.norm()
        with pytest.raises(StateMismatchError):
            torch.stack([parameter.grad, parameter.grad])
