"""Reduces its losses in inference mode, between forward and backward, as torchvision's detection reference does. Usage: OUT"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist


def mean_of(loss):
    with torch.inference_mode():
        value = torch.stack([loss])
        dist.all_reduce(value)
        return (value / dist.get_world_size()).item()


def main():
    common.start()
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = common.data(64)
    losses = []
    for step in range(20):
        pace.hold(step + 1)
        pace.work()
        picked = torch.randint(len(x), (8,))
        loss = common.loss_of(model, x[picked], y[picked])
        losses.append(mean_of(loss))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(mean_of(loss))
    final_state.write(sys.argv[1], losses, model, optimizer)
    common.end()


main()
