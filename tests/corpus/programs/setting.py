"""What most programs share: a job, a device, a small network, data."""

import os
import random

import numpy
import torch
import torch.distributed as dist
from torch import nn

WIDTH = 24
DEVICE = os.environ.get("CORPUS_DEVICE", "cpu")
BACKEND = os.environ.get("CORPUS_BACKEND", "gloo")
BACKENDS = BACKEND if DEVICE == "cpu" else f"cpu:gloo,{DEVICE}:{BACKEND}"
"""For tensors on the processor, too."""


def start(seed=7, backend=BACKEND):
    """Joins the job and seeds what draws numbers, differently on each rank."""
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group(backend)
    seed_everything(seed + dist.get_rank())
    return dist.get_rank(), dist.get_world_size()


def device():
    """This rank's own."""
    return torch.device("cpu") if DEVICE == "cpu" else torch.device(DEVICE, torch.cuda.current_device())


def seed_everything(seed):
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


class Block(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.down(torch.relu(self.up(self.norm(x)))))


class Network(nn.Module):
    def __init__(self, width=WIDTH, depth=3, dropout=0.1, outputs=1):
        super().__init__()
        self.first = nn.Linear(8, width)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(depth))
        self.head = nn.Linear(width, outputs)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def network(**options):
    """The same weights on every rank."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Network(**options).to(DEVICE)


def data(count, outputs=1):
    fixed = torch.Generator().manual_seed(0)
    return torch.randn(count, 8, generator=fixed), torch.randn(count, outputs, generator=fixed)


def dataset(count):
    return torch.utils.data.TensorDataset(*data(count))


def loss_of(model, x, y):
    return nn.functional.mse_loss(model(x.to(DEVICE)), y.to(DEVICE))


def out():
    return os.environ["CORPUS_OUT"]


def end():
    dist.barrier()
    dist.destroy_process_group()
