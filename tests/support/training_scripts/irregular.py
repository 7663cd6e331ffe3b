"""Optimizer steps behind the loop that trains. Usage: irregular.py OUT KIND

left-over: an update after each two micro-batches, and one with the fifth behind the loop of each epoch, then an evaluation.
critic: three updates of one network in a loop of their own, then one of the other network.
callbacks: the loss is computed first, its gradients and the update in a loop over callbacks; one of these keeps the best model.
dropped: as left-over, but what is left of each epoch is dropped.
returned: two updates in a function, and a loop over what it returns.
"""

import collections
import copy
import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS, MICRO_BATCHES, BATCH, TURNS = 3, 5, 4, 3


def left_over(model, optimizer, loader, losses):
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        waiting = 0
        total = 0.0
        for number, (x, y) in enumerate(loader):
            pace.work()
            loss = common.loss_of(model, x, y) / 2
            loss.backward()
            total += loss.item()
            waiting += 1
            if (number + 1) % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
                waiting = 0
                losses.append(total + number)
        if waiting > 0:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(norm.item() + total)
        with torch.no_grad():
            mean = torch.stack([common.loss_of(model.module, x, y) for x, y in loader]).mean()
        pace.strike(f"evaluation-{epoch}")
        dist.all_reduce(mean)
        losses.append(mean.item())


def critic(model, optimizer, loader, losses):
    judge = common.model()
    of_judge = torch.optim.Adam(judge.parameters(), lr=5e-3)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            for turn in range(TURNS):
                pace.work()
                of_judge.zero_grad()
                loss = common.loss_of(judge, x + torch.randn(()), y) * (turn + 1)
                loss.backward()
                of_judge.step()
                losses.append(loss.item())
            optimizer.zero_grad()
            loss = (model(x) - judge(x).detach()).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"judge": judge.state_dict(), "of_judge": of_judge.state_dict()}


def dropped(model, optimizer, loader, losses):
    for epoch in range(2 * EPOCHS):
        loader.sampler.set_epoch(epoch)
        optimizer.zero_grad()
        for number, (x, y) in enumerate(loader):
            pace.work()
            loss = common.loss_of(model, x, y) / 2
            loss.backward()
            losses.append(loss.item())
            if (number + 1) % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()


class Update:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def on_batch(self, state):
        self.optimizer.zero_grad()
        (state["loss"] / 2).backward()
        self.optimizer.step()


class Best:
    def __init__(self, model):
        self.model, self.found = model, None

    def on_batch(self, state):
        mean = state["loss"].detach().clone()
        dist.all_reduce(mean)
        self.means[state["number"] % 3].append(mean.item())
        if self.found is None or self.means[0][-1] < self.found[1]:
            self.found = copy.deepcopy(self.model.module), self.means[0][-1]

    def begin(self):
        self.means = collections.defaultdict(lambda: [0.0])


def callbacks(model, optimizer, loader, losses):
    best = Best(model)
    known = collections.OrderedDict(first=best, update=Update(model, optimizer), last=best)
    state = {"number": 0}
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        best.begin()
        for x, y in loader:
            pace.work()
            state["loss"] = common.loss_of(model, x, y)
            for callback in known.values():
                callback.on_batch(state)
            state["number"] += 1
            losses.append(state["loss"].item() + sum(map(sum, best.means.values())))
    return {"best": best.found[0].state_dict(), "score": best.found[1]}


def both(model, optimizer, x, y):
    found = {}
    for name, part in ("first", x[:2]), ("rest", x[2:]):
        optimizer.zero_grad()
        loss = common.loss_of(model, part, y[: len(part)])
        loss.backward()
        optimizer.step()
        found[name] = loss.item()
    return found


def returned(model, optimizer, loader, losses):
    sums = {}
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            pace.work()
            for name, value in both(model, optimizer, x, y).items():
                sums[name] = sums.get(name, 0.0) + value
                losses.append(sums[name])


def main():
    out, kind = sys.argv[1:]
    _, world_size = common.start()
    model = common.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    data = TensorDataset(*common.data(MICRO_BATCHES * BATCH * world_size))
    loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data))
    losses = []
    train = {
        "left-over": left_over,
        "critic": critic,
        "returned": returned,
        "dropped": dropped,
        "callbacks": callbacks,
    }[kind]
    more = train(model, optimizer, loader, losses) or {}
    final_state.write(out, losses, model, optimizer, **more)
    common.end()


if __name__ == "__main__":
    main()
