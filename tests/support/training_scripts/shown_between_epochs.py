"""The first rank alone shows what it has trained, in a loop whose body seems to train. Usage: shown_between_epochs.py OUT KIND

grad, no_grad: it shows with averaged weights, which it puts into the model for that long.
own: as no_grad, but with the model's own weights.
The encoder is not trained and has no wrapper, so that only comparisons tell that ranks hold the same.
In a run with torchrelay, STAYS=before, STAYS=inside or STAYS=behind lets it stay there until a loss is known; EVENTS: the file.
"""

import contextlib
import os
import sys
import time

import common
import final_state
import pace
import torch

STEPS = 7
"""In an epoch: contents are not compared at that number anyway."""


class Schedule:
    def __init__(self):
        self.done = 0

    def step(self, picture):
        self.done += 1
        return picture * 0.9


def stay(place):
    if os.environ.get("STAYS") == place:
        with open(os.environ["EVENTS"], encoding="utf-8") as events:
            while '"prepare"' not in events.readline():
                time.sleep(0.002)


def show(model, schedule):
    picture = torch.ones(1, 8)
    stay("before")
    for turn in range(4):
        picture = schedule.step(picture) + model(picture).detach()
        if turn == 2:
            stay("inside")
            pace.strike("inside")
    stay("behind")
    return picture.sum().item()


def put(weights, model):
    for weight, parameter in zip(weights, model.parameters()):
        parameter.data.copy_(weight)


def main():
    out, kind = sys.argv[1:]
    rank, _ = common.start()
    model = common.model()
    encoder = torch.nn.Linear(8, 8)
    encoder.load_state_dict({name: torch.full_like(value, 0.1) for name, value in encoder.state_dict().items()})
    average = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = common.data(64)
    losses, shown = [], []
    for _ in range(3):
        for _ in range(STEPS):
            pace.hold(len(losses) + 1)
            pace.work()
            chosen = torch.randint(len(x), (4,))
            with torch.no_grad():
                seen = encoder(x[chosen])
            optimizer.zero_grad()
            loss = common.loss_of(model, seen, y[chosen])
            loss.backward()
            optimizer.step()
            for kept, parameter in zip(average, model.parameters()):
                kept.lerp_(parameter.detach(), 0.2)
            losses.append(loss.item())
        if rank == 0:
            trained = [p.detach().clone() for p in model.parameters()]
            if kind != "own":
                put(average, model)
            model.eval()
            with contextlib.nullcontext() if kind == "grad" else torch.no_grad():
                shown.append(show(model.module, Schedule()))
            model.train()
            if kind != "own":
                put(trained, model)
    final_state.write(out, losses, model, optimizer, others=[average, shown, dict(encoder.state_dict())])
    common.end()


main()
