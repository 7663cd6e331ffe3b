"""A critic that each iteration updates, an actor that every second one does, and a target network behind all of that, as SAC has
them. Usage: targets.py OUT HOW

HOW the target is written: `data`, which torch does not count, or `counted`.
"""

import copy
import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    out, how = sys.argv[1:]
    common.start()
    torch.manual_seed(3)
    critic = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    actor = nn.Linear(8, 1)
    target = copy.deepcopy(critic)
    critic_wrapped, actor_wrapped = DistributedDataParallel(critic), DistributedDataParallel(actor)
    of_critic = torch.optim.Adam(critic.parameters(), lr=0.01)
    of_actor = torch.optim.Adam(actor.parameters(), lr=0.01)
    losses = []
    for iteration in range(16):
        pace.work()
        x = torch.rand(4, 8, generator=torch.Generator().manual_seed(2 * iteration + dist.get_rank()))
        with torch.no_grad():
            wanted = 0.1 * x.sum(1, keepdim=True) + 0.9 * target(x)
        loss = common.loss_of(critic_wrapped, x, wanted)
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        losses.append(loss.item())
        if iteration % 2 == 0:
            loss = common.loss_of(actor_wrapped, x, critic(x).detach())
            of_actor.zero_grad()
            loss.backward()
            of_actor.step()
        for t, p in zip(target.parameters(), critic.parameters()):
            if how == "data":
                t.data.copy_(0.1 * p.data + 0.9 * t.data)
            else:
                with torch.no_grad():
                    t.lerp_(p, 0.1)
    sums = [t.double().sum().item() for t in (*target.parameters(), *actor.parameters())]
    final_state.write(out, losses + sums, critic_wrapped, of_critic)
    common.end()


main()
