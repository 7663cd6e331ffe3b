"""Set-up that learns from outside: draws without a seed, names a run after the time.

What it has learned is appended to `learned-RANK` once, and written to `rank-RANK.json` at the end, where a new process must
have the same.
"""

import datetime
import json
import os
import random
import secrets
import socket
import sys
import time
import uuid
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from common import end, model
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def draws():
    generator, own = torch.Generator(), random.Random()
    generator.seed()
    words = {f"word {number}" for number in range(50)}
    return {
        "python": random.random(),
        "numpy": float(numpy.random.rand()),
        "system": [secrets.token_hex(4), str(uuid.uuid4()), str(uuid.uuid1()), os.urandom(4).hex()],
        "generators": [
            float(numpy.random.default_rng().random()),
            own.random(),
            torch.rand(1, generator=generator).item(),
        ],
        "order": list(words),
        "run": f"{datetime.datetime.now():%Y%m%d-%H%M%S.%f}-{time.time()}-{time.strftime('%X')}-{socket.gethostname()}",
    }


def main():
    out = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    learned = draws()
    data = TensorDataset(torch.rand(64, 8), torch.rand(64, 1))
    learned["data"] = data.tensors[0].sum().item()
    random.seed(os.getpid() * time.monotonic_ns())
    learned["seeded"] = [random.random(), torch.manual_seed(os.getpid() + time.monotonic_ns()) and torch.rand(1).item()]
    with open(out / f"learned-{rank}", "a") as file:
        file.write(json.dumps(learned) + "\n")
    wrapped = model()
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    losses = []
    for epoch in range(2):
        sampler = DistributedSampler(data)
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, batch_size=4, sampler=sampler):
            optimizer.zero_grad()
            loss = ((wrapped(x) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            time.sleep(0.02)
    learned["data"] = data.tensors[0].sum().item()
    parameters = [p.detach().double().sum().item() for p in wrapped.parameters()]
    result = {
        "learned": learned,
        "losses": losses,
        "parameters": parameters,
        "environment": os.environ.get("PYTHONHASHSEED"),
    }
    (out / f"rank-{rank}.json").write_text(json.dumps(result))
    end()


main()
