"""Steps draw from generators that numpy's seed sequences spawn, and from a source of bits by itself. Usage: spawning.py OUT"""

import sys

import common
import final_state
import numpy
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main(out):
    common.start()
    torch.manual_seed(3)
    seeds = numpy.random.SeedSequence(40 + dist.get_rank())
    generator = numpy.random.default_rng(7)
    bits = numpy.random.PCG64DXSM(5)
    late = None
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for step in range(20):
        pace.hold(len(losses) + 1)
        pace.work()
        if step == 4:
            late = numpy.random.Generator(numpy.random.Philox(seeds.spawn(1)[0]))
        drawn = numpy.random.default_rng(seeds.spawn(1)[0]).normal(size=(4, 8))
        drawn += generator.spawn(2)[1].normal(size=8)
        if late is not None:
            drawn += late.spawn(1)[0].normal(size=8) + late.normal()
        optimizer.zero_grad()
        loss = (model(torch.from_numpy(drawn).float()) - bits.random_raw() % 100 / 100).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    final_state.write(out, losses, model, optimizer, spawned=seeds.n_children_spawned)
    common.end()


main(*sys.argv[1:])
