"""What a batch is depends on a counter in shared memory. Usage: shared_counter.py OUT WHERE

WHERE: `workers` (a worker of the loader counts on), `spawned` (one that is started anew), `here` (the loader has none), `hidden`
(the loader counts where nobody can see it).
"""

import multiprocessing
import sys

import common
import final_state
import pace
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import default_collate


class Masks:
    """Collates, and hides other columns in each batch, as it counts them."""

    def __init__(self, how):
        self.counter = multiprocessing.get_context(how).Value("i", -1)

    def __call__(self, samples):
        with self.counter.get_lock():
            self.counter.value += 1
            seed = self.counter.value
        x, y = default_collate(samples)
        kept = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) < 0.7
        return x * kept, y


def hidden():
    counted = multiprocessing.Value("i", -1)

    def collate(samples):
        counted.value += 1
        x, y = default_collate(samples)
        return x + counted.value / 100, y

    return collate


def main():
    out, where = sys.argv[1:]
    common.start()
    how = "spawn" if where == "spawned" else "fork"
    data = TensorDataset(*common.data(32))
    loader = DataLoader(
        data,
        batch_size=4,
        shuffle=True,
        num_workers=0 if where == "here" else 1,
        collate_fn=hidden() if where == "hidden" else Masks(how),
        multiprocessing_context=None if where == "here" else how,
    )
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for epoch in range(3):
        for step, (x, y) in enumerate(loader):
            pace.hold(8 * epoch + step + 1)
            pace.work()
            optimizer.zero_grad()
            loss = common.loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    final_state.write(out, losses, model, optimizer)
    common.end()


if __name__ == "__main__":
    main()
