"""A learner from a buffer of what it has seen, in arrays that set-up has made. Usage: replay_buffer.py OUT"""

import sys

import common
import final_state
import numpy
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Buffer:
    def __init__(self, length, seed):
        self.seen, self.rewards = numpy.zeros((length, 8)), numpy.zeros(length, dtype=numpy.float32)
        self.at, self.size = 0, 0
        self.random = numpy.random.RandomState(seed)

    def add(self, seen, reward):
        self.seen[self.at], self.rewards[self.at] = seen, reward
        self.at = (self.at + 1) % len(self.rewards)
        self.size = min(self.size + 1, len(self.rewards))

    def sample(self, count):
        chosen = self.random.randint(0, self.size, count)
        return torch.from_numpy(self.seen[chosen]).float(), torch.from_numpy(self.rewards[chosen])


class World:
    def __init__(self, seed):
        self.random, self.state = numpy.random.RandomState(seed), numpy.zeros(8)

    def step(self, action):
        self.state = 0.9 * self.state + 0.1 * self.random.randn(8) + 0.01 * action
        return self.state, float(numpy.tanh(self.state).sum())


def main(out):
    common.start()
    torch.manual_seed(3)
    rank = dist.get_rank()
    buffer, world = Buffer(4000, 10 + rank), World(20 + rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(28):
        pace.hold(len(losses) + 1)
        pace.work()
        for _ in range(3):
            with torch.no_grad():
                action = model.module(torch.from_numpy(world.state).float()[None]).item()
            buffer.add(*world.step(action))
        seen, rewards = buffer.sample(4)
        optimizer.zero_grad()
        loss = (model(seen)[:, 0] - rewards).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    final_state.write(out, losses, model, optimizer, seen=buffer.seen, rewards=buffer.rewards, state=world.state)
    common.end()


main(*sys.argv[1:])
