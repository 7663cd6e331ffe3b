"""Three loops one after the other, with one model more from the second one on. Usage: one_model_more.py OUT HOW

HOW: an average is made between the first two loops, and is met before the model and the average that were there (`average`; with
`met` ranks wait for one another then, with `one` rank 0 alone makes a further one before it; `within`: in the first loop's sixth
step), a `head` with an optimizer of its own is, or nothing is made and each loop has the same models (`same`). With `alone`, ranks
average their models by hand at each loop's end alone, and are apart in between. With `own` each rank trains a model of its own,
and makes an average of it between the loops. With `habits` gradients are averaged by hand, those of a further model are never
zeroed, and the average that is made is met before both.
"""

import copy
import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist

WIDE, STEPS = 200, 12
AVERAGES = ("average", "met", "one", "within", "own", "habits")
BY_HAND = ("alone", "own", "habits")

how = sys.argv[2]
rank, world_size = common.start()
own = torch.Generator().manual_seed(100 + rank)
x, y = torch.randn(8, 6, generator=own), torch.randn(8, 1, generator=own)
losses = []


class Models:
    """The newest is met first."""

    def __init__(self):
        torch.manual_seed(3)
        self.further = None
        self.second = None
        self.second_optimizer = None
        net = torch.nn.Sequential(torch.nn.Linear(6, WIDE), torch.nn.Linear(WIDE, WIDE), torch.nn.Linear(WIDE, 1))
        if how == "own":
            torch.manual_seed(50 + rank)
            for parameter in net.parameters():
                torch.nn.init.normal_(parameter, std=0.1)
        self.first = copy.deepcopy(net).requires_grad_(False)
        self.adds = copy.deepcopy(net) if how == "habits" else None
        self.model = net if how in BY_HAND else torch.nn.parallel.DistributedDataParallel(net)
        self.optimizer = torch.optim.Adam(net.parameters(), lr=0.001)
        self.adds_optimizer = torch.optim.Adam(self.adds.parameters(), lr=0.001) if self.adds is not None else None


def lerp(average, model):
    with torch.no_grad():
        for kept, now in zip(average.parameters(), model.parameters()):
            kept.lerp_(now, 0.1)


def train(models):
    for _ in range(STEPS):
        pace.work()
        pace.hold(len(losses) + 1)
        models.optimizer.zero_grad()
        loss = ((models.model(x + len(losses) / 10) - y) ** 2).mean()
        if how == "head" and models.second is not None:
            models.second_optimizer.zero_grad()
            loss = loss + ((models.second(x) - y) ** 2).mean()
        if models.adds is not None:
            loss = loss + ((models.adds(x) - y) ** 2).mean()
        loss.backward()
        if how in ("alone", "own"):
            dist.all_reduce(torch.ones(1))
        if models.adds is not None:
            for parameter in (*models.model.parameters(), *models.adds.parameters()):
                dist.all_reduce(parameter.grad)
                parameter.grad /= world_size
            models.adds_optimizer.step()
        models.optimizer.step()
        if models.second_optimizer is not None:
            models.second_optimizer.step()
        lerp(models.first, models.model)
        if how in AVERAGES and models.second is not None:
            lerp(models.second, models.model)
        losses.append(loss.item())
        if how == "within" and len(losses) == 6:
            models.second = copy.deepcopy(models.first)


def average_all(models):
    if how == "alone":
        with torch.no_grad():
            for tensor in (*models.model.parameters(), *models.first.parameters()):
                dist.all_reduce(tensor)
                tensor /= world_size


models = Models()
train(models)
average_all(models)
if how == "one" and rank == 0:
    models.further = copy.deepcopy(models.model)
if how in ("average", "met", "one", "own", "habits"):
    models.second = copy.deepcopy(models.first)
    if how == "met":
        dist.barrier()
elif how == "head":
    models.second = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(6, 1))
    models.second_optimizer = torch.optim.Adam(models.second.parameters(), lr=0.001)
train(models)
average_all(models)
train(models)

kept = [t.detach() for t in models.first.parameters()]
kept += [t.detach() for t in models.second.parameters()] if models.second is not None else []
kept += [t for p in models.adds.parameters() for t in (p.detach(), p.grad)] if models.adds is not None else []
final_state.write(sys.argv[1], losses, models.model, models.optimizer, kept=kept)
common.end()
