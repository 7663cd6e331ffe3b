"""Ranks that are let on one by one behind the gate of a step. Usage: uneven.py OUT [mean]: with a collective after each step."""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist

STEPS = 24


def main():
    common.start()
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x, y = common.data(32)
    losses, means = [], []
    optimizer.register_step_pre_hook(lambda *_: pace.behind_gate(len(losses) + 1))
    for step in range(1, STEPS + 1):
        pace.work()
        chosen = torch.randint(len(x), (4,))
        pace.arrive(step)
        loss = common.loss_of(model, x[chosen], y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if "mean" in sys.argv[2:]:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            means.append(mean.item())
    final_state.write(sys.argv[1], losses, model, optimizer, means=means)
    common.end()


if __name__ == "__main__":
    main()
