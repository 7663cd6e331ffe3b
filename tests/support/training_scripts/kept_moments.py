"""Steps read tensors of an optimizer's state that the script keeps by itself. Usage: kept_moments.py OUT"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Averaging(torch.optim.Optimizer):
    """Binds another tensor in each step."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            entries = self.state[parameter]
            entries["mean"] = entries.get("mean", torch.zeros_like(parameter)) * 0.9 + parameter.grad
            parameter -= 0.01 * entries["mean"]


def main(out):
    common.start()
    torch.manual_seed(3)
    own = torch.Generator().manual_seed(10 + dist.get_rank())
    plain = nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 10))
    model = DistributedDataParallel(plain)
    first = torch.optim.Adam(plain[0].parameters(), lr=0.01)
    second = Averaging(plain[1].parameters())
    moments, history = [], []
    losses = []
    for step in range(20):
        pace.hold(len(losses) + 1)
        pace.work()
        loss = model(torch.rand(8, 200, generator=own)).square().mean()
        for tensor in (*moments, *history):
            loss = loss + tensor.norm().item() * plain[0].weight.square().mean()
        first.zero_grad()
        second.zero_grad()
        loss.backward()
        first.step()
        second.step()
        if step == 2:
            moments = [first.state[p]["exp_avg"] for p in plain[0].parameters()]
        history = [*history[-2:], second.state[plain[1].weight]["mean"]]
        losses.append(loss.item())
    final_state.write(out, losses, model, first, moments=moments, history=history, means=second.state_dict())
    common.end()


main(*sys.argv[1:])
