"""State where one seldom looks for it: attributes of tensors, tuples and numbers, an object's class, frozensets, a polynomial.

Usage: odd_places.py OUT
"""

import sys
from typing import NamedTuple

import common
import final_state
import numpy
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Warm:
    def at(self, step):
        if step == 6:
            self.__class__ = Trained
        return step


class Trained:
    def at(self, step):
        if step == 17:
            self.__class__ = Warm
        return 100 + step


class Point(NamedTuple):
    x: float
    trail: list


class Marked(Point):
    pass


class Noted(float):
    pass


class Member:
    def __init__(self):
        self.score = 0


def main(out):
    common.start()
    torch.manual_seed(3)
    phase, queue, number, point = Warm(), torch.zeros(32), Noted(1.5), Marked(1.0, [])
    queue.at, number.seen, point.hits = 0, 0, 0
    members = [Member() for _ in range(4)]
    chosen, curve = frozenset(members[:2]), numpy.poly1d([1.0, 0.0])
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses, seen = [], []
    for step in range(24):
        pace.hold(len(losses) + 1)
        pace.work()
        queue[queue.at] = step
        queue.at = (queue.at + 3) % 32
        number.seen += 1
        point.hits += 2
        curve[0] = curve[0] + step
        if step % 5 == 4:
            chosen = frozenset(members[step % 3 :])
        for member in chosen:
            member.score += 1
        scores = [member.score for member in members]
        seen.append([phase.at(step), queue.at, number.seen, point.hits, float(curve(1.0)), *scores])
        optimizer.zero_grad()
        loss = (model(torch.full((4, 8), sum(seen[-1]) / 1000)) - dist.get_rank()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    final_state.write(out, losses, model, optimizer, seen=seen, queue=queue)
    common.end()


main(*sys.argv[1:])
