"""Training beside a bar that a thread draws, and that keeps when it was drawn. Usage: drawn_bar.py OUT

`EVERY_S`: how often the thread looks. `SIZE`: the model's width, so that it takes some time to be moved.
"""

import os
import random
import sys
import threading
import time

import final_state
import numpy
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 16


class Drawn:
    def __init__(self, text):
        self.text = text


class Column:
    def __init__(self):
        self.cache = {}
        self.drawn_s = 0.0


class Bar(threading.Thread):
    def __init__(self, every_s):
        super().__init__(daemon=True)
        self.every_s = every_s
        self.done = 0
        self.is_due = False
        self.columns = [Column(), Column()]

    def run(self):
        while True:
            self.draw()
            time.sleep(self.every_s)

    def draw(self):
        for column in self.columns:
            column.drawn_s = time.monotonic()
            column.cache[0] = (column.drawn_s, Drawn(f"{self.done} of {STEPS}"))
        self.is_due = False


def main():
    out = sys.argv[1]
    width = int(os.environ.get("SIZE", "64"))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7 + rank)
    random.seed(rank)
    numpy.random.seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, width), nn.Tanh(), nn.Linear(width, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    bar = Bar(float(os.environ.get("EVERY_S", "0.02")))
    bar.start()
    losses = []
    for step in range(STEPS):
        pace.hold(step + 1)
        pace.work()
        loss = model(torch.randn(8, 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
        bar.done += 1
        bar.is_due = True
    final_state.write(out, losses, model, optimizer, done=bar.done)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
