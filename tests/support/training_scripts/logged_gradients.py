"""Each third step logs what the generator's latest update has left as gradients, behind the critic's update. Usage: OUT"""

import sys

import common
import final_state
import pace
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def norm_of(model):
    return sum(p.grad.norm().item() for p in model.parameters() if p.grad is not None)


def main():
    common.start()
    generator, critic = DistributedDataParallel(nn.Linear(4, 8)), common.model()
    of_generator, of_critic = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (generator, critic))
    x, _ = common.data(64)
    losses = []
    for step in range(20):
        pace.hold(step + 1)
        pace.work()
        real = x[torch.randint(len(x), (4,))]
        with torch.no_grad():
            fake = generator(torch.randn(4, 4))
        of_critic.zero_grad()
        loss = critic(torch.cat([fake, -real])).mean()
        loss.backward()
        of_critic.step()
        losses.append(loss.item())
        if step % 3 == 2:
            losses.append(norm_of(generator))
            of_generator.zero_grad()
            critic.requires_grad_(False)
            critic.module(generator(torch.randn(4, 4))).mean().neg().backward()
            critic.requires_grad_(True)
            of_generator.step()
    final_state.write(
        sys.argv[1], losses, critic, of_critic, others=[generator.state_dict(), of_generator.state_dict()]
    )
    common.end()


main()
