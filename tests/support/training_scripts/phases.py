"""Training loops one after the other. Usage: phases.py OUT KIND

twice: one function, called twice. finetune: another wrapper and optimizer for the second loop, after a look at what came of the
first. early: the same, but the first loop is left by a break, once what an evaluation says has not got better for a while. turns:
two loops in turn in each round. stopped: the first loop is left in the middle, by return. hidden: nothing tells from the second
loop that it trains.
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
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

DONE = [0]


def step(model, optimizer, x, y):
    pace.hold(DONE[0] + 1)
    pace.work()
    loss = common.loss_of(model, x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    DONE[0] += 1
    return loss.item()


def train(model, optimizer, loader, sampler, epochs, losses, limit=None):
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            if len(losses) == limit:
                return "stopped"
            losses.append(step(model, optimizer, x, y))
    return "through"


def train_until_it_stops(model, optimizer, loader, sampler, losses, x, y):
    best, waited = float("inf"), 0
    for epoch in range(9):
        sampler.set_epoch(epoch)
        for batch in loader:
            losses.append(step(model, optimizer, *batch))
        value = evaluate(model, x, y)
        waited = waited + 1 if value > 0.5 * best else 0
        best = min(best, value)
        if waited == 2:
            break
    return [epoch, best]


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad():
        total = common.loss_of(model.module, x, y)
    model.train()
    dist.all_reduce(total)
    return total.item()


def wrap(body):
    plain = nn.Sequential(body, nn.Linear(1, 4), nn.Tanh(), nn.Dropout(0.1), nn.Linear(4, 1))
    return DistributedDataParallel(plain, bucket_cap_mb=0.0002)


def finetune(model, losses, loader, sampler, x, y):
    kept = [evaluate(model, x, y), losses[-1]]
    teacher = copy.deepcopy(model.module)
    model = wrap(model.module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 if losses[-1] > 0 else 0.5, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    for epoch in range(2):
        sampler.set_epoch(100 + epoch)
        for x, y in loader:
            with torch.no_grad():
                wanted = teacher(x)
            losses.append(step(model, optimizer, x, 0.5 * (y + wanted)))
            scheduler.step()
            kept.append(losses[-1] - kept[1])
    return model, optimizer, kept


def main():
    out, kind = sys.argv[1:]
    _, world_size = common.start()
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = common.data(6 * 4 * world_size)
    sampler = DistributedSampler(TensorDataset(*data))
    loader = DataLoader(sampler.dataset, batch_size=4, sampler=sampler)
    losses, kept = [], []
    if kind == "turns":
        for round_ in range(3):
            for x, y in loader:
                losses.append(step(model, optimizer, x, y))
            for other in range(4):
                chosen = torch.randint(len(data[0]), (4,))
                losses.append(step(model, optimizer, data[0][chosen], data[1][chosen] + other))
            kept.append((round_, sum(losses)))
    elif kind == "early":
        kept += train_until_it_stops(model, optimizer, loader, sampler, losses, *data)
        model, optimizer, more = finetune(model, losses, loader, sampler, *data)
        kept += more
    else:
        kept.append(train(model, optimizer, loader, sampler, 2, losses, 8 if kind == "stopped" else None))
        if kind == "hidden":
            advance = step
            for batch in loader:
                losses.append(advance(model, optimizer, *batch))
        elif kind == "finetune":
            model, optimizer, more = finetune(model, losses, loader, sampler, *data)
            kept += more
        else:
            kept.append(evaluate(model, *data))
            kept.append(train(model, optimizer, loader, sampler, 2, losses))
    final_state.write(out, losses, model, optimizer, kept=kept, epoch=sampler.epoch)
    common.end()


if __name__ == "__main__":
    main()
