"""A model that grows while it trains. Usage: growing.py OUT HOW

HOW: `stages`, each iteration of an outer loop adds a layer, and wraps the model anew; `exchanged`, layers are put in place of
others in the midst of training, and the optimizer is given their parameters.
"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 8


class Block(nn.Module):
    def __init__(self, size, fading):
        super().__init__()
        self.layer, self.norm = nn.Linear(size, size), nn.BatchNorm1d(size)
        self.activation, self.fading, self.calls = torch.tanh, fading, 0

    def forward(self, x):
        self.calls += 1
        return x + self.fading * self.activation(self.norm(self.layer(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.blocks, self.last = nn.Linear(8, 16), nn.ModuleList(), nn.Linear(16, 1)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def step(model, optimizer, number, losses):
    pace.hold(len(losses) + 1)
    pace.work()
    optimizer.zero_grad()
    x = torch.rand(4, 8, generator=torch.Generator().manual_seed(2 * number + dist.get_rank()))
    loss = common.loss_of(model, x, x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
    losses.append(loss.item())


def stages(net, losses):
    for stage in range(4):
        if stage > 0:
            net.blocks.append(Block(16, 0.5 / stage))
        model = DistributedDataParallel(net)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        for number in range(STEPS):
            step(model, optimizer, STEPS * stage + number, losses)
    return model, optimizer


def exchanged(net, losses):
    net.blocks.append(Block(16, 0.1))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for number in range(4 * STEPS):
        if number == STEPS:
            net.blocks[0] = nn.Sequential(nn.Dropout(0.1), Block(16, 0.25))
            net.last = nn.Sequential(nn.Linear(16, 4), nn.Tanh(), nn.Linear(4, 1))
            old = {*optimizer.param_groups[0]["params"]} - {*net.parameters()}
            optimizer.param_groups[0]["params"] = [*net.parameters()]
            for parameter in old:
                optimizer.state.pop(parameter)
        common_steps(net, optimizer, number, losses)
    return net, optimizer


def common_steps(net, optimizer, number, losses):
    """Gradients are averaged by hand."""
    pace.hold(len(losses) + 1)
    pace.work()
    optimizer.zero_grad()
    x = torch.rand(4, 8, generator=torch.Generator().manual_seed(2 * number + dist.get_rank()))
    loss = common.loss_of(net, x, x.sum(1, keepdim=True))
    loss.backward()
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    losses.append(loss.item())


def main():
    out, how = sys.argv[1:]
    common.start()
    torch.manual_seed(3)
    losses = []
    model, optimizer = {"stages": stages, "exchanged": exchanged}[how](Net(), losses)
    calls = [module.calls for module in model.modules() if isinstance(module, Block)]
    final_state.write(out, losses, model, optimizer, calls=calls)
    common.end()


main()
