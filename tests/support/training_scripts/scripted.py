"""Parts of the model are TorchScript. Usage: scripted.py OUT HOW

HOW: `function`, `whole` (the model itself), `statistics` (a part of it binds buffers anew and counts), `traced`, `old` (a subclass
of ScriptModule), `evaluated` (its first call is an evaluation, and batches have several sizes).
"""

import sys
import warnings

import common
import final_state
import pace
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

warnings.simplefilter("ignore")  # newer torch says of each of these that it is deprecated


def bias_gelu(x, bias):
    x = x + bias
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


compiled = torch.jit.script(bias_gelu)


class Biased(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return compiled(x, self.bias)


class Statistics(nn.Module):
    count: int
    seen: list[float]

    def __init__(self, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.shift = torch.zeros(width)
        self.count = 0
        self.seen = [0.0]

    def forward(self, x):
        if self.training:
            self.mean = self.mean * 0.9 + x.detach().mean(0) * 0.1
            self.count += 1
            self.seen.append(float(self.mean[0]))
            if self.count % 3 == 0:
                self.shift = self.shift + self.mean
        return nn.functional.silu(x - self.mean) * x.sigmoid() + self.shift / (1 + self.seen[-1] ** 2)


class Old(torch.jit.ScriptModule):
    def __init__(self, width):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    @torch.jit.script_method
    def forward(self, x):
        x = x + self.bias
        return x * torch.sigmoid(x) * torch.tanh(x)


def model_of(how):
    if how == "whole":
        return torch.jit.script(
            nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 1))
        )
    middle = {"function": lambda: Biased(16), "old": lambda: Old(16)}.get(
        how, lambda: torch.jit.script(Statistics(16))
    )()
    if how == "traced":
        middle = torch.jit.trace(nn.Sequential(Biased(16), nn.GELU(), nn.LayerNorm(16)), torch.randn(4, 16))
    return nn.Sequential(nn.Linear(8, 16), middle, nn.Dropout(0.1), nn.Linear(16, 1))


def main():
    out, how = sys.argv[1:]
    rank, _ = common.start()
    torch.manual_seed(3)
    plain = model_of(how)
    x, y = common.data(64)
    if how == "evaluated":
        with torch.no_grad():
            plain.eval()(x[:8])
        plain.train()
    model = DistributedDataParallel(plain, bucket_cap_mb=0.0002)
    torch.manual_seed(rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(20):
        pace.hold(step + 1)
        pace.work()
        chosen = torch.randint(len(x), (4 + (step % 3 if how == "evaluated" else 0),))
        optimizer.zero_grad()
        loss = common.loss_of(model, x[chosen], y[chosen])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if how == "evaluated" and step % 5 == 4:
            model.eval()
            with torch.no_grad():
                losses.append(common.loss_of(model, x, y).item())
            model.train()
    final_state.write(out, losses, model, optimizer, kept=[vars_of(module) for module in model.modules()])
    common.end()


def vars_of(module):
    return {name: getattr(module, name) for name in ("count", "seen", "shift") if hasattr(module, name)}


main()
