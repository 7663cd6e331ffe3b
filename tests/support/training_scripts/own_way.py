"""A rank whose process is not its first one goes a way of its own from step 10 on. Usage: own_way.py OUT"""

import os
import sys
from pathlib import Path

import common
import final_state
import pace
import torch

rank, world_size = common.start()
first = Path(sys.argv[1]) / f"first-{rank}"
model = common.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
x, y = common.data(4)
losses = []
for step in range(1, 41):
    pace.work()
    optimizer.zero_grad()
    loss = common.loss_of(model, x, y)
    loss.backward()
    optimizer.step()
    if step == 1:
        first.write_text(str(os.getpid()))
    if step == 10 and first.read_text() != str(os.getpid()):
        with torch.no_grad():
            next(model.parameters()).add_(1.0)
    losses.append(loss.item())

final_state.write(sys.argv[1], losses, model, optimizer)
common.end()
