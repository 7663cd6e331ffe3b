"""Each step evaluates a transformer behind its update, by torch's fused kernels, and keeps what comes out. Usage: OUT"""

import sys

import common
import final_state
import pace
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    common.start()
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    plain = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(8, 1))
    model = DistributedDataParallel(plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = common.data(64)
    x, y = x.view(16, 4, 8), y.view(16, 4, 1)
    losses, scores = [], []
    for step in range(20):
        pace.hold(step + 1)
        pace.work()
        chosen = torch.randint(len(x), (4,))
        optimizer.zero_grad()
        loss = common.loss_of(model, x[chosen], y[chosen])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        plain.eval()
        with torch.no_grad():
            scores.append(plain(x).flatten().tolist())
        plain.train()
    final_state.write(sys.argv[1], losses, model, optimizer, others=scores)
    common.end()


main()
