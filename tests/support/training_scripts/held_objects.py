"""Objects that only sets, keys, hooks, loggers and views hold, what functions keep of their calls, what is held weakly, signals.

Usage: held_objects.py OUT
"""

import functools
import logging
import random
import sys
import threading
import types
import weakref

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Counter:
    def __init__(self, by=1):
        self.by = by
        self.count = 0

    def add(self):
        self.count += self.by
        return self.count


class Scale:
    def __init__(self):
        self.calls = 0

    def __call__(self, module, inputs):
        self.calls += 1
        return (inputs[0] * (1 + 0.01 * (self.calls % 5)),)


class Rows(logging.Handler):
    def __init__(self):
        super().__init__()
        self.rows = 0

    def emit(self, record):
        self.rows += 1


@functools.lru_cache(maxsize=4)
def noise(part):
    return random.random()


@functools.cache
def table(part, *, size):
    return torch.rand(size).tolist()


def main(out):
    common.start()
    torch.manual_seed(3)
    random.seed(dist.get_rank())
    meters, watched = {Counter(1), Counter(2), Counter(3)}, frozenset({Counter(5)})
    weights, view = {Counter(7): 1.0}, types.MappingProxyType({"seen": Counter(11)})
    phases = [Counter(13)]
    alive, by_step, notes = weakref.WeakSet(phases), weakref.WeakValueDictionary(), weakref.WeakKeyDictionary()
    warm, room = threading.Event(), threading.Semaphore(100)
    log = logging.getLogger("rows")
    log.propagate = False
    log.setLevel(logging.INFO)
    log.addHandler(Rows())
    net = nn.Linear(8, 1)
    net.register_forward_pre_hook(Scale())
    nn.modules.module.register_module_forward_pre_hook(Scale())
    model = DistributedDataParallel(net)
    model.register_forward_pre_hook(Scale())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses, seen = [], []
    for step in range(24):
        pace.hold(len(losses) + 1)
        pace.work()
        if step % 6 == 5:
            phases.append(Counter(step))
            alive.add(phases[-1])
            by_step[step] = phases[-1]
        if step == 5:
            meters.add(Counter(17))
            warm.set()
        for phase in phases:
            notes[phase] = notes.get(phase, 0) + step
        room.acquire()
        log.info("step %s", step)
        seen.append(
            [
                *sorted(meter.add() for meter in meters),
                *(meter.add() for meter in watched),
                *(key.add() * factor for key, factor in weights.items()),
                view["seen"].add(),
                sum(phase.add() for phase in alive),
                len(by_step),
                sum(notes.values()),
                float(warm.is_set()),
                room._value,
                sum(getattr(handler, "rows", 0) for handler in log.handlers),
                noise(step // 5),
                sum(table(step // 3, size=3)),
            ]
        )
        optimizer.zero_grad()
        loss = (model(torch.full((4, 8), sum(seen[-1]) / 1000)) - dist.get_rank()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    final_state.write(out, losses, model, optimizer, seen=seen)
    common.end()


main(*sys.argv[1:])
