"""Steps make the loader that they draw from where the one before is over; a variable holds its iterator. Usage: OUT KIND

KIND, of what the loader draws from: `kept`, a data set of set-up's; `workers`, the same with two of them; `subset`, a part of it
that the step chooses; `fresh`, a data set that the step makes; `sampled`, set-up's with a sampler of the step's;
`unseen`, a data set that the step makes, with something inside that is not carried; `first`, a loader of set-up's, which
nothing draws from before the first step.
"""

import os
import sys

import common
import final_state
import pace
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset

KIND = sys.argv[2]
EXAMPLES = 24


class Fresh(Dataset):
    def __init__(self, epoch):
        self.inputs, self.outputs = torch.randn(EXAMPLES, 8), [torch.randn(1) for _ in range(EXAMPLES)]
        self.scale = {"inputs": 1.0 + epoch}
        if KIND == "unseen":
            self.view = memoryview(bytearray(EXAMPLES))

    def __len__(self):
        return EXAMPLES

    def __getitem__(self, place):
        return self.inputs[place] * self.scale["inputs"], self.outputs[place]


def main():
    common.start()
    kept = TensorDataset(*common.data(EXAMPLES))
    of_set_up = DataLoader(kept, shuffle=True, batch_size=4)
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches, epoch, losses = None, 0, []

    def loader():
        if KIND == "first":
            return of_set_up
        if KIND == "sampled":
            sampler = DistributedSampler(kept, num_replicas=2, rank=int(os.environ["RANK"]))
            sampler.set_epoch(epoch)
            return DataLoader(kept, sampler=sampler, batch_size=4, collate_fn=lambda items: collate(items))
        if KIND == "subset":
            return DataLoader(Subset(kept, torch.randperm(EXAMPLES)[:12].tolist()), shuffle=True, batch_size=4)
        if KIND in ("fresh", "unseen"):
            return DataLoader(Fresh(epoch), shuffle=True, batch_size=4)
        return DataLoader(kept, shuffle=True, batch_size=4, num_workers=2 if KIND == "workers" else 0)

    for step in range(20):
        pace.hold(step + 1)
        pace.work()
        batch = next(batches, None) if batches is not None else None
        if batch is None:
            batches = iter(loader())
            epoch += 1
            batch = next(batches)
        loss = common.loss_of(model, *batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    final_state.write(sys.argv[1], losses, model, optimizer)
    common.end()


def collate(items):
    return torch.stack([item for item, _ in items]), torch.stack([target for _, target in items])


main()
