"""Modules for tests of TorchScript. Its compiler reads their source, so it has to be in a file without `annotations`."""

import warnings

import torch
from torch import nn


class Counting(nn.Module):
    """Binds a buffer anew, counts, and keeps a list."""

    count: int
    seen: list[float]

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 0.5))
        self.register_buffer("mean", torch.zeros(3))
        self.extra = torch.ones(2)
        self.inner = nn.BatchNorm1d(3)
        self.count = 0
        self.seen = [0.0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = self.mean * 0.5 + x.detach().mean(0)
            self.count += 1
            self.seen.append(float(self.count))
        return nn.functional.silu(self.inner(x) * self.weight) * x.sigmoid()


def gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    x = x + bias
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


def scripted(what):  # type: ignore[no-untyped-def]  # as torch declares it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch itself, newer ones
        return torch.jit.script(what)
