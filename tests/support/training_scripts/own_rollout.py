"""A rollout whose prediction an inner loop puts together, in tensors of more than 64 KiB. Usage: own_rollout.py OUT EVERY

Each EVERYth prediction is as large, and the others are small. No step needs the prediction of the step before. The inner loop
could be left without an iteration, for all that its code says.
"""

import sys

import common
import final_state
import pace
import torch

STEPS, LENGTH = 45, 3

every = int(sys.argv[2])
rank, world_size = common.start()
torch.manual_seed(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
own = torch.Generator().manual_seed(100 + rank)
losses, seen = [], []
made = None
for step in range(STEPS):
    pace.work()
    rows = 2_000 if step % every == 0 else 300
    state = torch.randn(rows, 1, 4, generator=own)
    wanted = torch.randn(rows, LENGTH, 4, generator=own)
    loss = 0.0
    for t in range(wanted.shape[1]):
        state = model(state)
        loss += (state - wanted[:, t : t + 1]).pow(2).mean()
        made = state if t == 0 else torch.cat((made, state), dim=1)
    seen.append((made - wanted).abs().max().item())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

final_state.write(sys.argv[1], losses, model, optimizer, seen=seen)
common.end()
