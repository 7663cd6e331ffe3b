"""Training reads files by itself: line by line in a generator, packed, by csv, binary records, and what lies in memory.

Usage: reading_files.py OUT
"""

import csv
import gzip
import io
import itertools
import json
import os
import struct
import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PARTS = 3


def write(folder):
    os.makedirs(folder, exist_ok=True)
    for part in range(PARTS):
        with open(f"{folder}/{part}.jsonl", "w") as file:
            file.writelines(json.dumps({"value": (n * n + part) % 97}) + "\n" for n in range(13))
    with gzip.open(f"{folder}/packed.gz", "wt") as file:
        file.writelines(f"{n * n % 83}\n" for n in range(500))
    with open(f"{folder}/rows.csv", "w", newline="") as file:
        csv.writer(file).writerows([["a", "b"], *([n, n * n % 71] for n in range(300))])
    with open(f"{folder}/binary", "wb") as file:
        file.write(struct.pack("500i", *[n * n % 89 for n in range(500)]))


def lines(folder):
    for part in itertools.cycle(range(PARTS)):
        with open(f"{folder}/{part}.jsonl") as file:
            for line in file:
                yield json.loads(line)["value"]


def packed(folder):
    with gzip.open(f"{folder}/packed.gz", "rt") as file:
        for place, line in enumerate(file):
            yield place + int(line)


def main(out):
    common.start()
    folder = f"data{dist.get_rank()}"
    if not os.path.exists(folder):
        write(folder)
    torch.manual_seed(3)
    inputs = torch.rand(400, 8)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    streams = lines(folder), packed(folder)
    rows = csv.DictReader(open(f"{folder}/rows.csv", newline=""))  # noqa: SIM115 - read in all steps
    binary = open(f"{folder}/binary", "rb")  # noqa: SIM115 - read in all steps
    header = open(f"{folder}/0.jsonl")  # noqa: SIM115 - it is read in the first steps, and then closed
    words = io.StringIO("".join(f"{n * 7 % 31}\n" for n in range(200)))
    losses, read = [], []
    for step, number in enumerate(itertools.islice(packed(folder), 3, 27)):
        pace.hold(len(losses) + 1)
        pace.work()
        values = [next(stream) for stream in streams]
        values += [number, int(next(rows)["b"]), struct.unpack("2i", binary.read(8))[1], int(words.readline())]
        if step < 6:
            values.append(len(header.readline()))
        elif step == 6:
            header.close()
        read.append(values)
        optimizer.zero_grad()
        loss = (model(inputs[[sum(values) % 400, step]]) - dist.get_rank()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    final_state.write(out, losses, model, optimizer, read=read)
    common.end()


main(*sys.argv[1:])
