"""Set-up that learns from outside: draws without a seed, names a run after the time, looks for files, asks its peers.

What it has learned is appended to `learned-RANK` once, and written to `rank-RANK.json` at the end, where a new process must
have the same.
"""

import datetime
import fcntl
import json
import os
import random
import secrets
import shutil
import socket
import sys
import tempfile
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


def files(out, rank):
    """As scripts do that look whether their folder is there, publish a cache by a rename, and lock it."""
    found = {"way": "resume" if (out / f"run-{rank}").exists() else "fresh"}
    if found["way"] == "fresh":
        (out / f"run-{rank}").mkdir()
    cache = out / f"cache-{rank}"
    if not cache.exists():
        with tempfile.NamedTemporaryFile("wb", dir=out, delete=False) as file:
            file.write(os.urandom(8))
        shutil.move(file.name, cache)
        found["made"] = True
    found["cache"] = cache.read_bytes().hex()
    lock = os.open(out / f"lock-{rank}", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    found["version"] = len([name for name in os.listdir(out) if name.startswith(f"version-{rank}")])
    (out / f"version-{rank}-{found['version']}").mkdir()
    return found


def wait_for(path):
    """As checkpointers do on shared file systems. What is waited for is there at last, or the rank has no way on."""
    end_s = time.monotonic() + 5
    while not path.exists():
        time.sleep(0.1)
        assert time.monotonic() < end_s, f"{path.name} is not there"
    return [path.is_dir(), len(os.listdir(path))]


def published(out, rank):
    """Rank 0 makes a folder, all wait until they see it, and rank 0 gives it its name at last."""
    made = out / "step0-tmp"
    if rank == 0:
        made.mkdir()
    dist.barrier()
    found = [wait_for(made)]
    dist.barrier()
    if rank == 0:
        (made / "part").write_text("whole")
        made.replace(out / "step0")
    found.append(wait_for(out / "step0"))
    dist.barrier()
    return found


def peers(rank):
    group = dist.new_group(backend="gloo", timeout=datetime.timedelta(minutes=5))
    group.monitored_barrier()
    dist.destroy_process_group(group)
    dist.monitored_barrier()
    store = dist.distributed_c10d._get_default_store()
    seed = [secrets.token_hex(4)]
    dist.broadcast_object_list(seed)
    if rank == 0:
        store.set("name", seed[0])
    return [seed[0], store.get("name").decode(), store.add("started", 1) > 0]


def main():
    out = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    learned = draws() | {"files": files(out, rank), "published": published(out, rank), "peers": peers(rank)}
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
        # Drawn and made on a new process's way in, where the lost rank's set-up had been over.
        assert len(secrets.token_hex(2)) == 4
        assert numpy.random.default_rng().random() < 1
        marker = out / f"epoch-{rank}-{epoch}"
        marker.mkdir(exist_ok=True)
        assert marker.exists()
        shutil.rmtree(tempfile.mkdtemp())
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
    for kind in ("version", "cache", "lock", "run"):
        assert len(list(out.glob(f"{kind}-{rank}*"))) == 1, kind
    end()


main()
