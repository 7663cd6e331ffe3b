"""The loss is a tensor of a class of the script's own, with attributes, as medical imaging has it. Usage: own_tensors.py OUT"""

import sys

import common
import final_state
import pace
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Described(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """What is computed from it has its attributes."""
        made = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(made, Described):
            for arg in args:
                if isinstance(arg, Described):
                    made.__dict__.update(arg.__dict__)
        return made


def main():
    common.start()
    data = TensorDataset(*common.data(72))
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data))
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, seen = [], []
    mean = torch.zeros(1).as_subclass(Described)
    mean.applied = []
    for x, y in loader:
        pace.work()
        optimizer.zero_grad()
        loss = common.loss_of(model, x, y).as_subclass(Described)
        loss.origin = {"step": len(losses), "affine": x.mean(0)}
        loss.backward()
        optimizer.step()
        mean = mean + loss.detach()
        mean.applied = [*mean.applied, loss.origin["step"]]
        losses.append(loss.item())
        seen.append((type(loss).__name__, loss.origin["affine"].sum().item(), mean.sum().item(), len(mean.applied)))
    final_state.write(sys.argv[1], losses, model, optimizer, seen=seen)
    common.end()


main()
