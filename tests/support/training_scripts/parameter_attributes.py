"""State of training in attributes of parameters. Usage: parameter_attributes.py OUT KEPT

KEPT: `momentum` of an optimizer and its count of steps, `gradients` that hooks add up, or `samples`, a list of gradients.
"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Momentum(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.steps = getattr(p, "steps", 0) + 1
                if not hasattr(p, "momentum"):
                    p.momentum = torch.zeros_like(p)
                p.momentum.mul_(0.9).add_(p.grad)
                p.add_(p.momentum, alpha=-group["lr"] / p.steps)


def add_up_gradients(model):
    def add(p):
        p.main_grad.add_(p.grad)
        p.grad = None

    for p in model.parameters():
        p.main_grad = torch.zeros_like(p)
        p.register_post_accumulate_grad_hook(add)


def use_added_up(model):
    for p in model.parameters():
        dist.all_reduce(p.main_grad)
        p.grad = p.main_grad / dist.get_world_size()


def keep_samples(model):
    for p in model.parameters():
        p.grad_sample = []
        p.register_post_accumulate_grad_hook(lambda p: p.grad_sample.append(p.grad.clone()))


def use_samples(model):
    for p in model.parameters():
        p.grad = torch.stack([sample.clamp(-1, 1) for sample in p.grad_sample[-3:]]).mean(0)
        dist.all_reduce(p.grad)
        del p.grad_sample[:-2]


def main():
    out, kept = sys.argv[1:]
    common.start()
    torch.manual_seed(3)
    plain = nn.Sequential(nn.Linear(8, 2_500), nn.Tanh(), nn.Linear(2_500, 1))
    wrapped = DistributedDataParallel(plain)
    model = wrapped if kept == "momentum" else plain
    optimizer = (
        Momentum(model.parameters(), 0.02) if kept == "momentum" else torch.optim.SGD(model.parameters(), lr=0.01)
    )
    if kept == "gradients":
        add_up_gradients(plain)
    elif kept == "samples":
        keep_samples(plain)
    losses = []
    for step in range(20):
        pace.work()
        optimizer.zero_grad()
        if kept == "gradients":
            for p in plain.parameters():
                p.main_grad.zero_()
        x = torch.rand(4, 8, generator=torch.Generator().manual_seed(2 * step + dist.get_rank()))
        loss = common.loss_of(model, x, x.sum(1, keepdim=True))
        loss.backward()
        if kept == "gradients":
            use_added_up(plain)
        elif kept == "samples":
            use_samples(plain)
        optimizer.step()
        losses.append(loss.item())
    counts = [getattr(p, "steps", 0) for p in plain.parameters()]
    final_state.write(out, losses + counts, wrapped, optimizer)
    common.end()


main()
