"""An average around the model that rank 0 alone keeps: a module that holds the model itself. Usage: average_around.py OUT HOW

HOW says what the average holds: the `model`, the `wrapper` around it, or a `list` with the model. With `frozen`, all ranks have one
more model behind the average, which nothing wraps.
"""

import copy
import sys

import common
import final_state
import pace
import torch

WIDE = 200
STEPS = 30


class Average(torch.nn.Module):
    def __init__(self, model, holds):
        super().__init__()
        self.online = holds
        self.kept = copy.deepcopy(model).requires_grad_(False)
        self.register_buffer("count", torch.zeros(1))

    def update(self, model):
        self.count += 1
        with torch.no_grad():
            for kept, now in zip(self.kept.parameters(), model.parameters()):
                kept.lerp_(now, 0.1)


class Trainer:
    def __init__(self, how, rank):
        torch.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Linear(6, WIDE), torch.nn.BatchNorm1d(WIDE), torch.nn.Linear(WIDE, 1))
        frozen = torch.nn.Linear(6, WIDE).requires_grad_(False)
        model = torch.nn.parallel.DistributedDataParallel(net)
        if rank == 0:
            held = {"model": net, "wrapper": model, "list": [net], "frozen": net}
            self.average = Average(net, held[how])
        self.frozen = frozen if how == "frozen" else None
        self.parts = {"model": model}
        self.optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
        own = torch.Generator().manual_seed(100 + rank)
        self.x = torch.randn(8, 6, generator=own)
        self.y = torch.randn(8, 1, generator=own)
        self.losses = []

    def train(self):
        for step in range(1, STEPS + 1):
            pace.work()
            pace.hold(step)
            self.optimizer.zero_grad()
            target = self.y if self.frozen is None else self.y + self.frozen(self.x).mean()
            loss = ((self.parts["model"](self.x + step / 10) - target) ** 2).mean()
            loss.backward()
            self.optimizer.step()
            if hasattr(self, "average"):
                self.average.update(self.parts["model"].module)
            self.losses.append(loss.item())


rank, world_size = common.start()
trainer = Trainer(sys.argv[2], rank)
trainer.train()
kept = [t.detach() for t in trainer.average.state_dict().values()] if rank == 0 else []
final_state.write(sys.argv[1], trainer.losses, trainer.parts["model"], trainer.optimizer, average=kept)
common.end()
