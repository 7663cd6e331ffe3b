"""Rollouts with updates behind each: the first one comes in a later iteration of the loop around. Usage: rollouts.py OUT KIND

seen: the loop around seems to train, by a call in its body. hidden: nothing tells that it may.
"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist

ROLLOUT = 6


class Environment:
    def __init__(self):
        self.state = torch.zeros(8)

    def step(self, action):
        self.state = 0.7 * self.state + 0.3 * torch.randn(8) + action
        return self.state, self.state.square().mean()

    observe = step


def update(model, optimizer, memory, losses):
    states, wanted = torch.stack([s for s, _ in memory]), torch.stack([w for _, w in memory]).unsqueeze(1)
    for _ in range(2):
        order = torch.randperm(len(memory))
        for chosen in order.split(3):
            pace.work()
            optimizer.zero_grad()
            loss = common.loss_of(model, states[chosen], wanted[chosen])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())


def main():
    out, kind = sys.argv[1:]
    common.start()
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    environment = Environment()
    memory, losses, means = [], [], []

    def learn(state, wanted):
        mean = wanted.clone()
        dist.all_reduce(mean)
        means.append(mean.item())
        memory.append((state, wanted))
        if len(memory) == ROLLOUT:
            update(model, optimizer, memory, losses)
            memory.clear()

    if kind == "seen":
        for turn in range(4 * ROLLOUT):
            learn(environment.state, environment.step(turn / 100)[1])
    else:
        for turn in range(4 * ROLLOUT):
            learn(environment.state, environment.observe(turn / 100)[1])
    final_state.write(out, losses, model, optimizer, others=[means, environment.state])
    common.end()


main()
