"""Trains by numbers that it reads from small files, which it writes itself: a history, a table, counters, its own log.

Usage: files_read_again.py OUT [KIND]

KIND `kept`: a file that is kept open to be read and written. `large`: a table of 100 KiB.
"""

import json
import logging
import os
import pickle
import sys
from pathlib import Path

import common
import final_state
import numpy
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Files:
    def __init__(self, folder):
        self.history = folder / "history.json"
        self.lines = folder / "lines.jsonl"
        self.table = folder / "table.npy"
        self.saved = folder / "saved.pt"
        self.count = folder / "count.txt"
        self.moved = folder / "moved.pkl"
        self.log = folder / "own.log"
        numpy.save(self.table, numpy.zeros(4))
        torch.save({"n": 0}, self.saved)
        self.count.write_text("0")
        self.moved.write_bytes(pickle.dumps([0]))
        self.logger = logging.getLogger("own")
        self.logger.propagate = False
        self.logger.setLevel(logging.INFO)
        self.logger.addHandler(logging.FileHandler(self.log))

    def __call__(self, step):
        history = json.loads(self.history.read_text()) if self.history.exists() else []
        self.history.write_text(json.dumps([*history, step]))
        with open(self.lines, "a") as lines:
            lines.write(json.dumps({"step": step}) + "\n")
        table = numpy.load(self.table)
        table[step % 4] += 1
        numpy.save(self.table, table)
        saved = torch.load(self.saved)
        saved["n"] += 1
        torch.save(saved, self.saved)
        with open(self.count, "r+") as count:
            counted = int(count.read()) + 1
            count.seek(0)
            count.write(str(counted))
        moved = pickle.loads(self.moved.read_bytes())
        self.moved.with_suffix(".part").write_bytes(pickle.dumps([moved[0] + 2]))
        os.replace(self.moved.with_suffix(".part"), self.moved)
        self.logger.info("step %s", step)
        lines = len(self.lines.read_text().splitlines()), len(self.log.read_text().splitlines())
        return [sum(history), *lines, float(table.sum()), saved["n"], counted, moved[0]]


class Kept:
    def __init__(self, folder):
        self.file = open(folder / "kept.txt", "w+")  # noqa: SIM115 - kept open, as scripts do

    def __call__(self, step):
        self.file.seek(0, os.SEEK_END)
        self.file.write("x")
        self.file.seek(0)
        return [len(self.file.read())]


class Large:
    def __init__(self, folder):
        self.path = folder / "large.npy"
        numpy.save(self.path, numpy.zeros(12800))

    def __call__(self, step):
        table = numpy.load(self.path)
        table += 1
        numpy.save(self.path, table)
        return [float(table[0])]


def main(out, kind="small"):
    rank, _ = common.start()
    folder = Path(out).parent / f"files-{rank}"
    folder.mkdir(exist_ok=True)
    files = {"small": Files, "kept": Kept, "large": Large}[kind](folder)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses, seen = [], []
    for step in range(24):
        pace.hold(len(losses) + 1)
        pace.work()
        seen.append(files(step))
        optimizer.zero_grad()
        loss = (model(torch.full((4, 8), sum(seen[-1]) / 1000)) - dist.get_rank()).square().mean()
        loss.backward()
        optimizer.step()
        seen.append(files(step))
        losses.append(loss.item())
    final_state.write(out, losses, model, optimizer, seen=seen)
    common.end()


main(*sys.argv[1:])
