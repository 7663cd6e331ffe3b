"""Two networks and two optimizers. Usage: turns.py OUT KIND

gan: one is stepped, then the other, each after a backward of its own. critic: the second one in every third iteration alone, and
the weights of the first are made smaller past torch's count. pair: one backward, then both optimizers. between: the same, and ranks
tell each other their losses in between. measured: there they tell each other how large their gradients are. together: the same as a
pair in a loop over them, and the second one averages the gradients itself, in its step. warm-up: the same, behind a loop in which
the second one alone makes five steps.
"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WARM_UP_STEPS = 5


def network(inputs):
    plain = nn.Sequential(nn.Linear(inputs, 160), nn.Tanh(), nn.Dropout(0.1), nn.Linear(160, 160), nn.Linear(160, 8))
    return DistributedDataParallel(plain, bucket_cap_mb=0.05)


class Averaging(torch.optim.Optimizer):
    """Updates each parameter as soon as it has the mean of its gradients."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.steps += 1
        for group in self.param_groups:
            for number, p in enumerate(group["params"]):
                if (self.steps, number) == (9, 2):
                    pace.strike("within")
                dist.all_reduce(p.grad)
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                mean.mul_(0.9).add_(p.grad)
                p.sub_(mean, alpha=group["lr"] / (1 + 0.01 * self.steps))


class Turns:
    """The middle weight of each network is larger than what the journal takes."""

    def __init__(self, kind):
        self.kind = kind
        self.maker, self.judge = network(6), network(8)
        self.of_maker = torch.optim.Adam(self.maker.parameters(), lr=2e-3, betas=(0.5, 0.99))
        self.of_judge = torch.optim.AdamW(self.judge.parameters(), lr=2e-3)
        if kind in ("together", "warm-up"):
            self.of_maker = Averaging(self.maker.parameters(), lr=2e-3)
        self.losses, self.kept = [], []

    def judges(self, real, made):
        self.of_judge.zero_grad()
        loss = (self.judge(real) - 1).square().mean() + self.judge(made.detach()).square().mean()
        loss.backward()
        self.of_judge.step()
        if self.kind == "critic":
            for p in self.judge.parameters():
                p.data.mul_(0.99)
        return loss.item()

    def makes(self, made):
        self.of_maker.zero_grad()
        loss = (self.judge(made) - 1).square().mean()
        loss.backward()
        self.of_maker.step()
        return loss.item()

    def warm_up(self):
        for _ in range(WARM_UP_STEPS):
            self.of_maker.zero_grad()
            loss = self.maker(torch.randn(4, 6)).square().mean()
            loss.backward()
            self.of_maker.step()
            self.losses.append(loss.item())
        if self.of_maker.steps != WARM_UP_STEPS:
            raise AssertionError(f"{self.of_maker.steps} steps")

    def iteration(self, number, real):
        pace.hold(number)
        pace.work()
        made = self.maker(torch.randn(len(real), 6))
        if self.kind in ("together", "warm-up"):
            for optimizer in (self.of_judge, self.of_maker):
                optimizer.zero_grad()
            loss = (self.judge(made) - real).square().mean()
            loss.backward()
            for optimizer in (self.of_judge, self.of_maker):
                optimizer.step()
            self.losses.append(loss.item())
            return
        if self.kind in ("pair", "between", "measured"):
            self.of_judge.zero_grad()
            self.of_maker.zero_grad()
            loss = (self.judge(made) - real).square().mean()
            loss.backward()
            self.of_judge.step()
            if self.kind != "pair":
                told = next(self.maker.parameters()).grad.norm() if self.kind == "measured" else loss.detach().clone()
                dist.all_reduce(told)
                self.kept.append(told.item())
            self.of_maker.step()
            self.losses.append(loss.item())
            return
        self.losses.append(self.judges(real, made))
        if self.kind == "gan" or number % 3 == 2:
            self.losses.append(self.makes(made))
        mean = torch.tensor(self.losses[-1])
        dist.all_reduce(mean)
        self.kept.append(mean.item())


def main():
    out, kind = sys.argv[1:]
    _, world_size = common.start()
    turns = Turns(kind)
    sampler = DistributedSampler(TensorDataset(common.data(7 * 4 * world_size)[0]))
    loader = DataLoader(sampler.dataset, batch_size=4, sampler=sampler)
    if kind == "warm-up":
        turns.warm_up()
    number = 0
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (real,) in loader:
            number += 1
            turns.iteration(number, real)
    other = {"judge": turns.judge.state_dict(), "of_judge": turns.of_judge.state_dict(), "kept": turns.kept}
    final_state.write(out, turns.losses, turns.maker, turns.of_maker, **other)
    common.end()


if __name__ == "__main__":
    main()
