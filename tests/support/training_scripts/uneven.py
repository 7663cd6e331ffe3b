"""Ranks that are let on one by one behind the gate of a step. Usage: uneven.py OUT [WHAT...], each WHAT after the optimizer step:

shrink: the weights are made smaller; average: an average of the weights goes on; sum: one that is a new tensor each time;
mean: a collective; average-late, data-late: the average, after the collective; read: a number is read from the average;
score: the average is evaluated, and read as arrays; gradient: a number is read from the gradients; data-average, data-clamp,
data-swap: the average through `.data`, weights that are clipped through it and by a new tensor in it, none of which torch
counts as writes; data-read: a number is read before such a clip; reduce: an average over all ranks in place, which torch does
not count either; wide: weights of 5 MB are read, and clipped then.
Before it: data-before, data-once, reduce-before: an average is written, not counted either; once: in step 10 alone;
flag: the script sets the flag of `no_sync` itself, as some do for accumulation; tee: items come from an
itertools.tee.
"""

import copy
import itertools
import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist

STEPS = 24


class Turns:
    """Turns without end, with a place that can be seen."""

    def __init__(self):
        self.place = -1

    def __next__(self):
        self.place = (self.place + 1) % 3
        return "abc"[self.place]


def go_on(average, model):
    with torch.no_grad():
        for mine, theirs in zip(average.parameters(), model.parameters()):
            mine.lerp_(theirs, 0.1)


def past_the_count(what, average, model, wide):
    """Returns the numbers that it reads."""
    numbers = []
    for mine, theirs in zip(average.parameters(), model.parameters()):
        if "data-average" in what:
            mine.data.mul_(0.9).add_(theirs.data, alpha=0.1)
        if "data-swap" in what:
            mine.data = mine.data * 0.9 + theirs.data * 0.1
        if "data-read" in what:
            numbers.append(theirs.data.abs().max().item())
        if "data-clamp" in what:
            theirs.data.clamp_(-0.25, 0.25)
    if "wide" in what:
        numbers.append(wide.weight.data.abs().max().item())
        wide.weight.data.clamp_(-0.05, 0.05)
    if "reduce" in what:
        with torch.no_grad():
            average[0].weight.mul_(0.5)
        dist.all_reduce(average[0].weight)
    return numbers


@torch.no_grad()
def score(average, x, y):
    average.eval()
    loss = common.loss_of(average, x, y).item()
    average.train()
    return [loss, *(float(p.numpy().sum()) for p in average.parameters())]


def main():  # noqa: C901 - a training script, written as users write
    common.start()
    model = common.model()
    what = sys.argv[2:]
    temperature = torch.nn.Parameter(torch.ones(()))
    wide = torch.nn.Linear(100, 12_000 if "wide" in what else 0, bias=False)
    torch.nn.init.constant_(wide.weight, 0.1)
    optimizer = torch.optim.AdamW([*model.parameters(), temperature, *wide.parameters()], lr=0.01)
    average = copy.deepcopy(model.module)
    total = torch.zeros(200, 100)
    turns = itertools.tee(itertools.cycle("abc"))[0] if "tee" in what else Turns()
    x, y = common.data(32)
    losses, means, numbers = [], [], []
    optimizer.register_step_pre_hook(lambda *_: pace.behind_gate(len(losses) + 1))
    for step in range(1, STEPS + 1):
        pace.work()
        numbers.append(next(turns))
        chosen = torch.randint(len(x), (4,))
        pace.arrive(step)
        if "data-before" in what or ("data-once" in what and step == 10):
            average[0].weight.data.mul_(0.9)
        if "reduce-before" in what:
            dist.all_reduce(average[0].weight)
        if "flag" in what:
            model.require_backward_grad_sync = True
        loss = common.loss_of(model, x[chosen], y[chosen]) * temperature
        if "wide" in what:
            loss = loss + (wide.weight**2).sum() / 100
        optimizer.zero_grad()
        loss.backward()
        dist.all_reduce(temperature.grad)
        optimizer.step()
        losses.append(loss.item())
        if "shrink" in what:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.999)
        if "average" in what:
            go_on(average, model)
        numbers += past_the_count(what, average, model, wide)
        if "sum" in what:
            total = total + next(model.parameters()).sum().detach()
        if "read" in what:
            numbers.append(next(average.parameters()).sum().item())
        if "score" in what:
            numbers.append(score(average, x, y))
        if "gradient" in what and "mean" not in what:
            numbers.append(next(model.parameters()).grad.norm().item())
        if "mean" in what:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            means.append(mean.item())
        if "gradient" in what and "mean" in what:
            numbers.append(next(model.parameters()).grad.norm().item())
        if "average-late" in what:
            go_on(average, model)
        if "data-late" in what:
            past_the_count(["data-average"], average, model, wide)
    more = {
        "wide": wide.weight.detach(),
        "average": average.state_dict(),
        "total": total,
        "temperature": temperature,
        "numbers": numbers,
    }
    final_state.write(sys.argv[1], losses, model, optimizer, means=means, **more)
    common.end()


if __name__ == "__main__":
    main()
