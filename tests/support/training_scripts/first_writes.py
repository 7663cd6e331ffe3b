"""Tensors that are alike on all ranks for long, and then get what is the rank's own. Usage: first_writes.py OUT HOW

HOW: a `memory` of zeros is written to, one is `made`, an average that is kept is copied (`snapshot`), a layer of the rank's own
model is `unfrozen`, or the script's hook binds another average in the update (`global`) from the first step on.
"""

import copy
import sys

import common
import final_state
import pace
import torch

STEPS, FIRST = 30, 20

how = sys.argv[2]
rank, world_size = common.start()
own_model = how == "unfrozen"
torch.manual_seed(3 + rank if own_model else 3)
net = torch.nn.Sequential(torch.nn.Linear(6, 200), torch.nn.Linear(200, 200), torch.nn.Linear(200, 1))
net[1].requires_grad_(not own_model)
model = net if own_model else torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
own = torch.Generator().manual_seed(100 + rank)
x, y = torch.randn(8, 6, generator=own), torch.randn(8, 1, generator=own)
average = torch.randn(20_000, generator=own)
memory, best, made = torch.zeros(20_000), None, None
losses = []


def in_update(*_):
    global average
    if how == "global":
        average = average * 0.9 + net[0].weight.detach().sum()


optimizer.register_step_post_hook(in_update)
for step in range(1, STEPS + 1):
    pace.work()
    optimizer.zero_grad()
    loss = ((model(x + step / 10) - y) ** 2).mean() + memory.mean() + (0 if made is None else made.mean())
    loss.backward()
    if own_model:
        torch.distributed.all_reduce(torch.ones(1))
    optimizer.step()
    if how == "snapshot":
        average.mul_(0.99)
    if step == FIRST:
        net[1].requires_grad_(True)
        if how == "memory":
            memory += average
        if how == "made":
            made = average + 1
        if how == "snapshot":
            best = average.clone()
    losses.append(loss.item())

kept = [t for t in (memory, best, made, average) if t is not None]
final_state.write(sys.argv[1], losses, copy.deepcopy(net), optimizer, kept=kept)
common.end()
