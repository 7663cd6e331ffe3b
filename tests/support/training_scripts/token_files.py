"""Tokens are read from one file after the other, into arrays that cannot be written to. Usage: token_files.py OUT COUNT

COUNT: of tokens in a file, each of two bytes.
"""

import os
import sys

import common
import final_state
import numpy
import pace
import torch
from torch.nn.parallel import DistributedDataParallel

FILES, EACH = 4, 5
"""How many steps a file is in use."""


class Tokens:
    def __init__(self, folder, rank):
        self.folder, self.rank, self.steps = folder, rank, 0
        self.read(0)

    def read(self, number):
        with open(f"{self.folder}/{number}.bin", "rb") as file:
            file.read(64)
            self.tokens = numpy.frombuffer(file.read(), dtype=numpy.uint16)
        self.place = self.rank * 8

    def next_batch(self):
        part = torch.from_numpy(self.tokens[self.place : self.place + 9].astype(numpy.int64))
        self.place += 16
        self.steps += 1
        if self.steps % EACH == 0:
            self.read(self.steps // EACH % FILES)
        return part[:-1], part[1:]


def main():
    out, count = sys.argv[1], int(sys.argv[2])
    rank, _ = common.start()
    folder = f"{os.path.dirname(out) or '.'}/tokens{rank}"
    os.makedirs(folder, exist_ok=True)
    for number in range(FILES):
        tokens = numpy.random.RandomState(number).randint(0, 50, count).astype(numpy.uint16)
        with open(f"{folder}/{number}.bin", "wb") as file:
            file.write(bytes(64) + tokens.tobytes())
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 50)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens, losses = Tokens(folder, rank), []
    for _ in range(18):
        pace.work()
        x, y = tokens.next_batch()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    final_state.write(out, losses, model, optimizer)
    common.end()


main()
