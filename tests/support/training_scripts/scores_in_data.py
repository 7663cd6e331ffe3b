"""Losses of samples that each step writes into its data set, by which the next epoch is drawn. Usage: scores_in_data.py OUT

The data set also knows which samples the latest batch has, and forgets them once the step has used them.
"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler


class Scored(Dataset):
    def __init__(self, count, rank):
        generator = torch.Generator().manual_seed(rank)
        self.items = torch.rand(count, 8, generator=generator)
        self.scores = torch.ones(count)
        self.active = None

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return index, self.items[index]

    def collate(self, samples):
        self.active = torch.tensor([index for index, _ in samples])
        return torch.stack([item for _, item in samples])

    def update(self, losses):
        self.scores[self.active] = losses
        self.active = []


class Hardest(Sampler):
    def __init__(self, data, count):
        self.data, self.count = data, count

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter(torch.multinomial(self.data.scores, self.count).tolist())


def main():
    (out,) = sys.argv[1:]
    common.start()
    torch.manual_seed(3)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.manual_seed(4 + dist.get_rank())
    data = Scored(32, dist.get_rank())
    loader = DataLoader(data, batch_size=4, sampler=Hardest(data, 20), collate_fn=data.collate)
    losses = []
    for _ in range(4):
        for x in loader:
            pace.work()
            optimizer.zero_grad()
            each = (model(x) - x.sum(1, keepdim=True)).square().mean(1)
            data.update(each.detach())
            each.mean().backward()
            optimizer.step()
            losses.append(each.mean().item())
    final_state.write(out, losses + data.scores.tolist(), model, optimizer)
    common.end()


main()
