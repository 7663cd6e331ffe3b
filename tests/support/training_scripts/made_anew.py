"""Cross-validation: all is made anew in each fold, in one function. Usage: made_anew.py OUT [groups] [even] [large [apart]] [meet]

The folds' models differ in their width, but for `even`. With `groups` each fold has a group of its own, to average its loss over.
`large` models have more than 4 MiB; with `apart` each rank draws other ones, before DistributedDataParallel makes them alike.
With `meet` ranks wait for one another once a fold's model is made.
"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def wrapped(fold):
    width = 16 if "even" in sys.argv else 16 + 8 * fold
    inner = [nn.Linear(width, 60_000), nn.ReLU(), nn.Linear(60_000, width)] if "large" in sys.argv else []
    plain = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), *inner, nn.Dropout(0.2), nn.Linear(width, 1))
    return DistributedDataParallel(plain, bucket_cap_mb=0.0002)


def cross_validation(folds, groups):
    losses, scores = [], []
    for fold in range(folds):
        torch.manual_seed(100 + fold + (1000 * dist.get_rank() if "apart" in sys.argv else 0))
        kept = TensorDataset(*(part[fold::folds] for part in common.data(96)))
        loader = DataLoader(kept, batch_size=2, sampler=DistributedSampler(kept, seed=fold))
        group = dist.new_group(range(dist.get_world_size())) if groups else None
        model = wrapped(fold)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
        pace.strike(f"made{fold}")
        if "meet" in sys.argv:
            dist.barrier()
        for x, y in loader:
            pace.work()
            optimizer.zero_grad()
            loss = common.loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            if groups:
                mean = loss.detach().clone()
                dist.all_reduce(mean, group=group)
                losses.append(mean.item())
            losses.append(loss.item())
        names = [dist.group.WORLD.name(), dist.get_backend(group)] + (
            [group.name(), group.group_name] if groups else []
        )
        scores.append((sum(p.sum().item() for p in model.parameters()), *names))
    return losses, scores, model, optimizer


def main():
    common.start()
    losses, scores, model, optimizer = cross_validation(3, "groups" in sys.argv)
    final_state.write(sys.argv[1], losses, model, optimizer, scores=scores)
    common.end()


main()
