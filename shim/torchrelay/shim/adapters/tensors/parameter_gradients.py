"""Read `Tensor.grad` of many parameters at once, past the classes and modes that take part in every call of torch.

Leans on `torch._C.DisableTorchFunction`: under `torch.set_default_device`, for example, each attribute of a tensor is asked for
through Python. Seen on torch 2.4 to 2.13.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def gradients_of(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    with torch._C.DisableTorchFunction():
        return [parameter.grad for parameter in parameters]


def put_gradient(parameter: torch.Tensor, gradient: torch.Tensor | None) -> None:
    with torch._C.DisableTorchFunction():
        parameter.grad = gradient
