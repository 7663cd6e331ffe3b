"""Optimizer steps behind the loop that trains. Usage: irregular.py OUT KIND

left-over: an update after each two micro-batches, and one with the fifth behind the loop of each epoch, then an evaluation.
critic: three updates of one network in a loop of their own, then one of the other network.
"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS, MICRO_BATCHES, BATCH, TURNS = 3, 5, 4, 3


def left_over(model, optimizer, loader, losses):
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        waiting = 0
        total = 0.0
        for number, (x, y) in enumerate(loader):
            pace.work()
            loss = common.loss_of(model, x, y) / 2
            loss.backward()
            total += loss.item()
            waiting += 1
            if (number + 1) % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
                waiting = 0
                losses.append(total + number)
        if waiting > 0:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(norm.item() + total)
        with torch.no_grad():
            mean = torch.stack([common.loss_of(model.module, x, y) for x, y in loader]).mean()
        pace.strike(f"evaluation-{epoch}")
        dist.all_reduce(mean)
        losses.append(mean.item())


def critic(model, optimizer, loader, losses):
    judge = common.model()
    of_judge = torch.optim.Adam(judge.parameters(), lr=5e-3)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            for turn in range(TURNS):
                pace.work()
                of_judge.zero_grad()
                loss = common.loss_of(judge, x + torch.randn(()), y) * (turn + 1)
                loss.backward()
                of_judge.step()
                losses.append(loss.item())
            optimizer.zero_grad()
            loss = (model(x) - judge(x).detach()).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"judge": judge.state_dict(), "of_judge": of_judge.state_dict()}


def main():
    out, kind = sys.argv[1:]
    _, world_size = common.start()
    model = common.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    data = TensorDataset(*common.data(MICRO_BATCHES * BATCH * world_size))
    loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data))
    losses = []
    train = {"left-over": left_over, "critic": critic}[kind]
    more = train(model, optimizer, loader, losses) or {}
    final_state.write(out, losses, model, optimizer, **more)
    common.end()


if __name__ == "__main__":
    main()
