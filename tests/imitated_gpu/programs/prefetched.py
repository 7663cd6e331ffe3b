"""Fetches the next batch on a stream of its own while it computes, and slowly, as many scripts do. Usage: prefetched.py OUT."""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

COPY_NS = 60_000_000


class Ahead:
    def __init__(self, loader):
        self.batches = iter(loader)
        self.stream = torch.cuda.Stream()
        self.fetch()

    def fetch(self):
        self.inputs, self.targets = next(self.batches, (None, None))
        if self.inputs is None:
            return
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(COPY_NS)
            self.inputs = self.inputs.cuda(non_blocking=True)
            self.targets = self.targets.cuda(non_blocking=True)

    def next(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        inputs, targets = self.inputs, self.targets
        self.fetch()
        return inputs, targets


def train(loader, model, optimizer, losses):
    ahead = Ahead(loader)
    inputs, targets = ahead.next()
    while inputs is not None:
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
        inputs, targets = ahead.next()


def main():
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(96, 8), torch.randint(0, 4, (96,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler, pin_memory=True)
    model = DistributedDataParallel(torch.nn.Linear(8, 4).cuda(), device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        train(loader, model, optimizer, losses)
    (Path(sys.argv[1]) / f"rank{os.environ['RANK']}.json").write_text(json.dumps(losses))
    dist.destroy_process_group()


main()
