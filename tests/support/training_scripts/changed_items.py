"""Steps change objects that the loader has yielded. Usage: changed_items.py OUT popped|ordered|shuffled|fields

`popped`: labels are taken out of a batch that is no plain dict, as tokenizers give them; `ordered`: out of an OrderedDict;
`shuffled`: lists in samples; `fields`: tensors and lists of a dataclass.
"""

import collections
import dataclasses
import random
import sys

import common
import final_state
import pace
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


class Encoding(collections.UserDict):
    pass


class Sample:
    def __init__(self, x, y):
        self.x, self.y, self.order, self.seen = x, y, list(range(8)), 0


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor
    order: list


def collate(kind, rows):
    x, y = torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])
    if kind == "shuffled":
        return [Sample(*row) for row in rows]
    if kind == "fields":
        return Batch(x, y, [3, 1, 2, 0])
    return (Encoding if kind == "popped" else collections.OrderedDict)(x=x, labels=y)


def used(kind, batch):
    """What the model is given; the batch is another one behind this."""
    if kind == "shuffled":
        for sample in batch:
            random.shuffle(sample.order)
            sample.seen += 1
        return torch.stack([s.x[s.order] * s.seen for s in batch]), torch.stack([s.y for s in batch])
    if kind == "fields":
        batch.x.mul_(0.5)
        batch.order.append(batch.order.pop(0))
        return batch.x[batch.order], batch.y[batch.order]
    labels = batch.pop("labels")
    return batch["x"], labels


def main():
    out, kind = sys.argv[1:]
    common.start()
    torch.manual_seed(3)
    random.seed(3)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    data = TensorDataset(*common.data(64))
    losses = []
    for batch in DataLoader(data, batch_size=4, shuffle=True, collate_fn=lambda rows: collate(kind, rows)):
        pace.work()
        x, y = used(kind, batch)
        loss = common.loss_of(model, x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    final_state.write(out, losses, model, optimizer)
    common.end()


if __name__ == "__main__":
    main()
