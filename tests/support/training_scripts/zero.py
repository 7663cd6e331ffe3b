"""Each rank updates its part of the parameters, and sends it to the others within the step. Usage: zero.py OUT"""

import sys

import common
import final_state
import pace
import torch
from torch.distributed.optim import ZeroRedundancyOptimizer


def main():
    common.start()
    model = common.model()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-2)
    x, y = common.data(32)
    losses = []
    for _ in range(14):
        pace.work()
        chosen = torch.randint(len(x), (4,))
        optimizer.zero_grad()
        loss = common.loss_of(model, x[chosen], y[chosen])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    final_state.write(sys.argv[1], losses, model, optimizer.optim)
    common.end()


main()
