"""Saves a checkpoint now and then, and goes on from the newest one that it finds. Usage: saving.py OUT [EPOCHS]"""

import pathlib
import random
import sys

import final_state
import numpy
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS_PER_EPOCH = 11
SAVED_EVERY = 10


def newest(folder):
    found = sorted(folder.glob("step-*.pt"), key=lambda path: int(path.stem.partition("-")[2]))
    return torch.load(found[-1]) if found else None


def main():
    out, epochs = pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 4
    folder = out / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7)
    random.seed(rank)
    numpy.random.seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    saved = newest(folder)
    begin = 0
    if saved is not None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        begin = saved["step"]
        print(f"rank {rank} goes on from step {begin}", flush=True)
    losses, step = [], begin
    for step in range(begin, epochs * STEPS_PER_EPOCH):
        pace.hold(step + 1)
        pace.work()
        data = torch.Generator().manual_seed(1000 * step + rank)
        inputs = torch.randn(8, 16, generator=data)
        optimizer.zero_grad()
        loss = model(inputs).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % SAVED_EVERY == 0 and rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            partial = folder / "partial"
            torch.save(state, partial)
            partial.rename(folder / f"step-{step + 1}.pt")
    (out / f"began-{rank}").write_text(str(begin))
    final_state.write(out, losses[-1:], model, optimizer, step=step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
