"""An average of the weights that rank 0 alone keeps, as most scripts do that save it there. Usage: lone_average.py OUT"""

import copy
import sys

import common
import final_state
import pace
import torch

WIDE = 300

rank, world_size = common.start()
torch.manual_seed(3)
net = torch.nn.Sequential(torch.nn.Linear(6, WIDE), torch.nn.Linear(WIDE, WIDE), torch.nn.Linear(WIDE, 1))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
average = copy.deepcopy(net) if rank == 0 else None
x, y = torch.randn(8, 6), torch.randn(8, 1)
losses = []
for step in range(1, 41):
    pace.work()
    optimizer.zero_grad()
    loss = ((model(x + step / 10) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    if average is not None:
        with torch.no_grad():
            for kept, now in zip(average.parameters(), net.parameters()):
                kept.lerp_(now, 0.1)
    losses.append(loss.item())

kept = [p.detach() for p in average.parameters()] if average is not None else []
final_state.write(sys.argv[1], losses, model, optimizer, average=kept)
common.end()
