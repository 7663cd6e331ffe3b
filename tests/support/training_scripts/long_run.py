"""A long training that is struck from outside. Usage: long_run.py OUT EPOCHS HOW

`ddp`: it knows of no fault. `saves`: it saves all its state at the end of each epoch, and goes on from there if it is started
again. Its gradients are averaged one by one then: DistributedDataParallel's buckets, and with them the last bits, are others
behind a restart.
"""

import os
import pathlib
import random
import sys

import final_state
import numpy
import orders
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

STEPS_PER_EPOCH = 11


def build(norm):
    return nn.Sequential(
        nn.Linear(16, 48),
        norm(48),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(48, 48),
        nn.Tanh(),
        nn.Linear(48, 1),
    )


class Data(torch.utils.data.Dataset):
    def __init__(self, count):
        fixed = torch.Generator().manual_seed(0)
        self.x = torch.randn(count, 16, generator=fixed)
        self.y = torch.randn(count, 1, generator=fixed)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        orders.obey("data")
        return self.x[index], self.y[index]


class Saves:
    """Each rank has a file for each of its epochs; one counts once `whole` names it."""

    def __init__(self, folder, rank):
        self.folder, self.rank = folder, rank
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, epoch):
        return self.folder / f"{epoch}-{self.rank}.pt"

    def newest(self):
        whole = self.folder / "whole"
        return torch.load(self.path(int(whole.read_text())), weights_only=False) if whole.exists() else None

    def write(self, epoch, state):
        partial = self.folder / f"partial-{self.rank}-{os.getpid()}"
        torch.save(state, partial)
        os.replace(partial, self.path(epoch))
        dist.barrier()
        if self.rank == 0:
            partial = self.folder / "partial"
            partial.write_text(str(epoch))
            os.replace(partial, self.folder / "whole")
        self.path(epoch - 2).unlink(missing_ok=True)


def state_of(model, optimizer, scheduler, kept):
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "random": (torch.get_rng_state(), random.getstate(), numpy.random.get_state()),
        "kept": kept,
    }


def enter(saved, model, optimizer, scheduler):
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    torch.set_rng_state(saved["random"][0])
    random.setstate(saved["random"][1])
    numpy.random.set_state(saved["random"][2])
    return saved["kept"]


def average(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def main():
    out, epochs, how = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1234)
    net = build(nn.BatchNorm1d if how == "ddp" else nn.LayerNorm)
    torch.manual_seed(1234 + rank)
    random.seed(rank)
    numpy.random.seed(rank)
    data = Data(STEPS_PER_EPOCH * 4 * world_size)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    model = DistributedDataParallel(net, bucket_cap_mb=0.01) if how == "ddp" else net
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    kept = {"epoch": 0, "step": 0, "losses": [], "means": []}
    saves = Saves(out / "saved", rank) if how == "saves" else None
    saved = saves.newest() if saves is not None else None
    if saved is not None:
        kept = enter(saved, model, optimizer, scheduler)
        print(f"rank {rank} goes on from step {kept['step']}", flush=True)
    losses, means, step = kept["losses"], kept["means"], kept["step"]
    for epoch in range(kept["epoch"], epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for x, y in loader:
            pace.work()
            orders.obey("head")
            scale = 1.0 + 0.1 * random.random() + 0.1 * float(numpy.random.rand())
            made = model(x)
            orders.obey("forward")
            made.register_hook(lambda gradient: orders.obey("backward"))
            loss = ((made - scale * y) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            if how == "saves":
                average(model)
            orders.obey("update")
            optimizer.step()
            orders.obey("behind")
            scheduler.step()
            step += 1
            losses.append(loss.item())
            total += loss.item()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            means.append(mean.item() / world_size)
        means.append(total)
        if saves is not None:
            now = {"epoch": epoch + 1, "step": step, "losses": losses, "means": means}
            saves.write(epoch + 1, state_of(model, optimizer, scheduler, now))
    final_state.write(
        out,
        losses,
        model,
        optimizer,
        scheduler=scheduler.state_dict(),
        sampler={"epoch": sampler.epoch, "order": list(sampler)},
        means=means,
        step=step,
    )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
