"""An evaluation after each epoch, with metrics, a moving average of the model and its best copy. Usage: evaluation.py OUT"""

import collections
import copy
import sys
from dataclasses import dataclass, field

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class Metrics:
    recent: collections.deque = field(default_factory=lambda: collections.deque(maxlen=5))
    by_epoch: dict = field(default_factory=dict)
    counts: collections.Counter = field(default_factory=collections.Counter)
    curves: collections.defaultdict = field(default_factory=lambda: collections.defaultdict(list))


class Average:
    def __init__(self, model):
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.updates = 0

    def update(self, model):
        self.updates += 1
        for name, p in model.named_parameters():
            self.weights[name].lerp_(p.detach(), 0.1)


@torch.no_grad()
def evaluate(model, loader, metrics, epoch):
    model.eval()
    total, correct = 0.0, torch.zeros(1)
    for place, (x, y) in enumerate(loader):
        total += common.loss_of(model.module, x, y).item()
        correct += (model.module(x).sign() == y.sign()).sum()
        if place == 1:
            pace.strike(f"evaluation-{epoch}")
    dist.all_reduce(correct)
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, {"rank": dist.get_rank(), "total": total})
    metrics.by_epoch[epoch] = {"correct": correct.item(), "totals": [g["total"] for g in gathered]}
    model.train()
    return sum(g["total"] for g in gathered)


def main():
    common.start()
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = TensorDataset(*common.data(44))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    held_out = DataLoader(TensorDataset(*common.data(12)), batch_size=4)
    metrics, average = Metrics(), Average(model.module)
    losses, best, best_model = [], float("inf"), None
    for epoch in range(4):
        sampler.set_epoch(epoch)
        seen = None
        for x, y in loader:
            pace.work()
            loss = common.loss_of(model, x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update(model.module)
            losses.append(loss.item())
            metrics.recent.append(loss.detach())
            metrics.counts["steps"] += 1
            metrics.counts["below 1"] += int(loss.item() < 1)
            metrics.curves["loss"].append((epoch, loss.item()))
            seen = x.mean() if seen is None else seen + x.mean()
        score = evaluate(model, held_out, metrics, epoch)
        metrics.by_epoch[epoch]["seen"] = seen
        if score < best:
            best, best_model = score, copy.deepcopy(model.module.state_dict())
    final_state.write(
        sys.argv[1],
        losses,
        model,
        optimizer,
        metrics=[metrics.recent, metrics.by_epoch, dict(metrics.counts), dict(metrics.curves)],
        average=[average.weights, average.updates],
        best=[best, best_model],
    )
    common.end()


if __name__ == "__main__":
    main()
