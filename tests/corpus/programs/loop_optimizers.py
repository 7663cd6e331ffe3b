"""A list of optimizers, stepped in a loop of its own. One of them communicates within its step: Muon's shape.

Each rank works out the updates of its share of the matrices, and all are gathered; the momentum is everywhere.
"""

import ending
import pace
import setting
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def orthogonal(matrix, rounds=3):
    x = matrix / (matrix.norm() + 1e-7)
    for _ in range(rounds):
        x = 1.5 * x - 0.5 * x @ x.T @ x
    return x


class SharedWork(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr, "momentum": 0.9})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        self.steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["buffer"], state["count"] = torch.zeros_like(parameter), 0
                state["buffer"].mul_(group["momentum"]).add_(parameter.grad)
                state["count"] += 1
            for first in range(0, len(group["params"]), world_size):
                share = group["params"][first : first + world_size]
                longest = max(p.numel() for p in share)
                own, *gathered = (share[0].new_zeros(longest) for _ in range(1 + world_size))
                if rank < len(share):
                    update = orthogonal(self.state[share[rank]]["buffer"])
                    own[: update.numel()] = update.flatten()
                dist.all_gather(gathered, own)
                for parameter, update in zip(share, gathered):
                    parameter.add_(update[: parameter.numel()].view_as(parameter), alpha=-group["lr"])


def main():
    _, world_size = setting.start()
    model = DistributedDataParallel(setting.network())
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizers = [SharedWork(matrices, lr=2e-2), torch.optim.AdamW(others, lr=3e-3)]
    schedulers = [torch.optim.lr_scheduler.StepLR(o, 4, gamma=0.7) for o in optimizers]
    data = setting.dataset(7 * 4 * world_size)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    losses = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            pace.work()
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = setting.loss_of(model, x, y)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            for scheduler in schedulers:
                scheduler.step()
            losses.append(loss.item())
    shared, plain = optimizers
    ending.write(losses, model=model, shared=shared, plain=plain, schedulers=schedulers, steps=shared.steps)
    setting.end()


if __name__ == "__main__":
    main()
