"""What the small scripts share: a job, a model, data."""

import os
import random
from datetime import timedelta

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def start(seed=7):
    dist.init_process_group("gloo", timeout=timedelta(seconds=float(os.environ.get("GROUP_TIMEOUT_S", "1800"))))
    torch.manual_seed(seed + dist.get_rank())
    random.seed(seed + dist.get_rank())
    numpy.random.seed(seed + dist.get_rank())
    return dist.get_rank(), dist.get_world_size()


def model():
    plain = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 1))
    return DistributedDataParallel(plain, bucket_cap_mb=0.0002)


def data(count):
    fixed = torch.Generator().manual_seed(0)
    return torch.randn(count, 8, generator=fixed), torch.randn(count, 1, generator=fixed)


def loss_of(model, x, y):
    return ((model(x) - y) ** 2).mean()


def end():
    dist.barrier()
    dist.destroy_process_group()
