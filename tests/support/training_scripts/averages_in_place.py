"""Averages of the weights are evaluated in the model itself, after each epoch. Usage: averages_in_place.py OUT PUT EVALUATE

PUT: how they take the place of the weights, and how these come back.
data: through `.data`, past torch's counts. counted: with `load_state_dict`. each: with the function for many tensors at once.
exchanged: the averages hold the weights meanwhile.
EVALUATE. alone: each rank by itself. together: the ranks sum up what each has found. first: only the first rank does.
STRIKE=put:RANK, or =evaluated:RANK, ends that rank with the averages in place, before its evaluation or behind it.
"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist

EPOCH, WIDE = 4, 20_000


class Averages:
    def __init__(self, model, how):
        self.model, self.how = model, how
        self.kept = [p.detach().clone() for p in model.parameters()]
        self.aside = None

    def update(self):
        with torch.no_grad():
            for kept, parameter in zip(self.kept, self.model.parameters()):
                kept.lerp_(parameter, 0.2)

    def put(self):
        if self.how == "exchanged":
            self.exchange()
        else:
            self.aside = [p.detach().clone() for p in self.model.parameters()]
            self.fill(self.kept)

    def back(self):
        if self.how == "exchanged":
            self.exchange()
        else:
            self.fill(self.aside)

    def fill(self, content):
        if self.how == "counted":
            self.model.load_state_dict(dict(zip(self.model.state_dict(), content)))
        elif self.how == "each":
            torch._foreach_copy_([p.data for p in self.model.parameters()], content)
        else:
            for parameter, kept in zip(self.model.parameters(), content):
                parameter.data.copy_(kept)

    def exchange(self):
        for parameter, kept in zip(self.model.parameters(), self.kept):
            between = kept.data.clone()
            kept.data.copy_(parameter.data)
            parameter.data.copy_(between)


def evaluate(model, x, y, how):
    model.eval()
    pace.strike("put")
    with torch.no_grad():
        loss = common.loss_of(model, x, y)
    if how == "together":
        dist.all_reduce(loss)
    pace.strike("evaluated")
    model.train()
    return loss.item()


def epoch(model, optimizer, averages, losses, x, y):
    for _ in range(EPOCH):
        pace.work()
        chosen = torch.randint(len(x), (4,))
        optimizer.zero_grad()
        loss = common.loss_of(model, x[chosen], y[chosen])
        loss.backward()
        optimizer.step()
        averages.update()
        losses.append(loss.item())


def main():
    out, put, how = sys.argv[1:]
    rank, _ = common.start()
    layers = torch.nn.Linear(8, WIDE), torch.nn.Tanh(), torch.nn.Linear(WIDE, 1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    averages = Averages(model.module, put)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(64, 8), torch.randn(64, 1)
    losses, found = [], []
    for _ in range(3):
        epoch(model, optimizer, averages, losses, x, y)
        if how != "first" or rank == 0:
            averages.put()
            found.append(evaluate(model.module, x, y, how))
            averages.back()
    final_state.write(out, losses, model, optimizer, others=[averages.kept, found])
    common.end()


main()
