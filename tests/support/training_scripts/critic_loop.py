"""Updates of a critic in a loop of their own, with a collective in each, then one of a generator. Usage: OUT"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def critic_update(critic, optimizer, real, fake):
    optimizer.zero_grad()
    loss = critic(fake).mean() - critic(real).mean()
    loss.backward()
    penalty = (critic.module(real) ** 2).mean()
    for parameter, gradient in zip(critic.parameters(), torch.autograd.grad(penalty, [*critic.parameters()])):
        dist.all_reduce(gradient)  # around the wrapper, as gradient penalties are
        parameter.grad.add_(gradient / dist.get_world_size())
    optimizer.step()
    return loss.item()


def main():
    common.start()
    critic = DistributedDataParallel(nn.Linear(8, 1))
    generator = DistributedDataParallel(nn.Linear(3, 8))
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-2)
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-2)
    losses = []
    for step in range(12):
        pace.hold(step + 1)
        pace.work()
        for _ in range(3):
            with torch.no_grad():
                fake = generator.module(torch.randn(4, 3))
            losses.append(critic_update(critic, of_critic, torch.randn(4, 8), fake))
        of_generator.zero_grad()
        loss = -critic.module(generator(torch.randn(4, 3))).mean()
        loss.backward()
        of_generator.step()
        losses.append(loss.item())
    more = {"generator": dict(generator.named_parameters()), "of_generator": of_generator.state_dict()}
    final_state.write(sys.argv[1], losses, critic, of_critic, **more)
    common.end()


main()
