"""A numpy memory map that is opened once, and `torch.randint` for what to read from it."""

import os
import tempfile

import ending
import numpy
import pace
import setting
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LENGTH, VOCABULARY = 10, 32


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.cell = nn.GRU(16, 24, batch_first=True)
        self.head = nn.Linear(24, VOCABULARY)
        self.dropout = nn.Dropout(0.1)

    def forward(self, tokens):
        return self.head(self.dropout(self.cell(self.embed(tokens))[0]))


class Batches:
    def __init__(self, path):
        self.tokens = numpy.memmap(path, dtype=numpy.uint16, mode="r")
        self.drawn = 0

    def get(self, count):
        starts = torch.randint(len(self.tokens) - LENGTH - 1, (count,))
        rows = [torch.from_numpy(self.tokens[s : s + LENGTH + 1].astype(numpy.int64)) for s in starts]
        self.drawn += count
        return torch.stack(rows)


def main():
    setting.start()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tokens.bin")
        numpy.random.default_rng(0).integers(0, VOCABULARY, 3000).astype(numpy.uint16).tofile(path)
        batches = Batches(path)
    model = DistributedDataParallel(Model().to(setting.DEVICE))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(18):
        pace.work()
        rows = batches.get(4).to(setting.DEVICE)
        logits = model(rows[:, :-1])
        loss = nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), rows[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    ending.write(losses, model=model, optimizer=optimizer, drawn=batches.drawn)
    setting.end()


if __name__ == "__main__":
    main()
