"""An average of weights that is written to past torch's counts (`.data`), and saved now and then. Usage: saved_average.py OUT"""

import copy
import io
import sys

import common
import final_state
import pace
import torch

STEPS, EACH = 40, 12

rank, world_size = common.start()
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.LayerNorm(300), torch.nn.Linear(300, 8))
average = copy.deepcopy(net).requires_grad_(False)
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
own = torch.Generator().manual_seed(100 + rank)
losses, seen = [], []
for step in range(1, STEPS + 1):
    pace.work()
    optimizer.zero_grad()
    loss = model(torch.randn(8, 64, generator=own)).pow(2).mean()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for now, kept in zip(net.parameters(), average.parameters()):
            kept.data.mul_(0.9).add_(0.1 * now.detach().data)
    losses.append(loss.item())
    if step % EACH == 0:
        file = io.BytesIO()
        torch.save(
            {"model": model.state_dict(), "average": average.state_dict(), "optimizer": optimizer.state_dict()}, file
        )
        file.seek(0)
        seen.append([tensor.double().sum().item() for tensor in torch.load(file)["average"].values()])

final_state.write(sys.argv[1], losses, model, optimizer, average=[*average.parameters()], seen=seen)
common.end()
