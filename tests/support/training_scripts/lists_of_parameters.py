"""An average of the weights in a list of parameters that no model has. Usage: lists_of_parameters.py OUT HOW

HOW: `written` behind the update, as most keep it, `large` ones too, `early` before the gradients are computed, or `anew`, by new
parameters in each step.
"""

import copy
import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def average(averages, parameters, how):
    if how == "anew":
        return [nn.Parameter(0.9 * a.detach() + 0.1 * p.detach()) for a, p in zip(averages, parameters)]
    for a, p in zip(averages, parameters):
        a.detach().mul_(0.9).add_(p.detach(), alpha=0.1)
    return averages


def main():
    out, how = sys.argv[1:]
    common.start()
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 20_000 if how == "large" else 16), nn.Tanh())
    model.append(nn.Linear(model[0].out_features, 1))
    parameters = list(model.parameters())
    averages = copy.deepcopy(parameters)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    losses = []
    for step in range(20):
        pace.work()
        if how == "early":
            averages = average(averages, parameters, how)
        optimizer.zero_grad()
        x = torch.rand(4, 8, generator=torch.Generator().manual_seed(2 * step + dist.get_rank()))
        loss = common.loss_of(wrapped, x, x.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        if how != "early":
            averages = average(averages, parameters, how)
        losses.append(loss.item())
    sums = [a.double().sum().item() for a in averages] + [a.double().square().sum().item() for a in averages]
    final_state.write(out, losses + sums, wrapped, optimizer)
    common.end()


main()
