"""Everything at module level, batches by `next` with a restart when they end. Usage: module_level.py OUT"""

import sys

import common
import final_state
import pace
import torch
from torch.utils.data import DataLoader, TensorDataset

rank, world_size = common.start()
model = common.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
loader = DataLoader(TensorDataset(*common.data(28)), batch_size=4, shuffle=True)
losses = []
restarts = 0
it = iter(loader)
for step in range(30):
    try:
        x, y = next(it)
    except StopIteration:
        restarts += 1
        it = iter(loader)
        x, y = next(it)
    pace.work()
    pace.fail(step + 1)
    loss = common.loss_of(model, x, y)
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

final_state.write(sys.argv[1], losses, model, optimizer, restarts=restarts, last=[x, y])
common.end()
