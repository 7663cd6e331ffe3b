"""A second copy of each parameter takes its place in the update (mixed precision by hand). Usage: second_copies.py OUT [fsdp]

`p.data = p.second` lets the parameter have the copy's memory from in front of the gate until behind the update.
"""

import sys

import common
import final_state
import pace
import torch
from torch.distributed.fsdp import FullyShardedDataParallel


def main():
    out, *kind = sys.argv[1:]
    common.start()
    model = common.model()
    if kind:
        model = FullyShardedDataParallel(model.module, device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for p in model.parameters():
        p.second = p.detach().clone()
    losses = []
    for _ in range(16):
        pace.work()
        optimizer.zero_grad()
        states = torch.randn(6, 8)
        loss = common.loss_of(model, states, states.sum(1, keepdim=True))
        loss.backward()
        for p in model.parameters():
            p.first = p.data
            p.data = p.second
        optimizer.step()
        with torch.no_grad():
            for p in model.parameters():
                p.first.copy_(p.data)
                p.data = p.first
        losses.append(loss.item())
    final_state.write(out, losses, model, optimizer)
    common.end()


main()
