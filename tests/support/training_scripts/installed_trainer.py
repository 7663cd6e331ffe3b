"""A package with a distribution's metadata beside it trains. Usage: installed_trainer.py OUT

Its data come through a collate function with a loop, and a sampler of the script's own.
"""

import os
import sys

import common
import final_state
import pace
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "installed"))
import tiny_trainer

EPOCHS, STEPS, BATCH = 3, 6, 4


def collate(items):
    rows = []
    for item in items:
        rows.append(torch.cat(item))
    return torch.stack(rows)


def loss_of(model, rows):
    return common.loss_of(model, rows[:, :8], rows[:, 8:])


def each(done):
    pace.hold(done + 1)
    pace.work()


def main():
    (out,) = sys.argv[1:]
    _, world_size = common.start()
    model = common.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    data = TensorDataset(*common.data(STEPS * BATCH * world_size))
    loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data), collate_fn=collate)
    rounds = tiny_trainer.Rounds(model, optimizer, loader, loss_of)
    rounds.loop_all(EPOCHS, each)
    final_state.write(out, rounds.losses, model, optimizer, done=rounds.done)
    common.end()


if __name__ == "__main__":
    main()
