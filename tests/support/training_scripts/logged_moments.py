"""Tensors that steps write to behind their update, and read there. Usage: OUT KIND

KIND: `pruned`, moments of the optimizer are scaled, and their norm is logged before; `large`, the same with more than what is
copied; `data`, an average of the weights is written through `.data`, and its norm is logged; `after`, moments are scaled in place,
and read once that is done.
"""

import sys

import common
import final_state
import pace
import torch

KIND = sys.argv[2]
WIDTH = 200_000 if KIND == "large" else 256


def average(kept, model):
    for mine, theirs in zip(kept.parameters(), model.parameters()):
        mine.data.mul_(0.9).add_(theirs.data, alpha=0.1)


def prune(optimizer):
    norms = []
    for state in optimizer.state.values():
        if KIND in ("pruned", "large"):
            norms.append(state["exp_avg"].norm().item())
        state["exp_avg"].mul_(0.5)
        if KIND == "after":
            norms.append(state["exp_avg"].norm().item())
    return sum(norms)


def main():
    common.start()
    torch.manual_seed(7)
    plain = torch.nn.Sequential(torch.nn.Linear(8, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 1))
    kept = torch.nn.Sequential(torch.nn.Linear(8, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 1))
    model = torch.nn.parallel.DistributedDataParallel(plain)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, y = common.data(64)
    losses = []
    for step in range(1, 25):
        pace.hold(step)
        pace.work()
        picked = torch.randperm(len(x))[:8]
        optimizer.zero_grad()
        loss = common.loss_of(model, x[picked], y[picked])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if KIND == "data":
            average(kept, plain)
            losses.append(sum(parameter.norm().item() for parameter in kept.parameters()))
        else:
            losses.append(prune(optimizer))
    final_state.write(sys.argv[1], losses, model, optimizer)
    common.end()


main()
