"""A solver of equations: it goes on in double precision from step 5, in a folder of its own, with other environment variables.

Usage: changing_settings.py OUT
"""

import contextvars
import decimal
import logging
import os
import sys

import common
import final_state
import numpy
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS_DONE = contextvars.ContextVar("STEPS_DONE", default=0)


def main(out):
    common.start()
    out = os.path.abspath(out)
    folder = os.path.abspath(f"rank{dist.get_rank()}")
    os.makedirs(folder, exist_ok=True)
    torch.manual_seed(3)
    os.environ["WEIGHT"] = "1"
    os.environ["WARM_UP"] = "0.25"
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses, phases = [], []
    for step in range(24):
        pace.hold(len(losses) + 1)
        pace.work()
        if step == 5:
            torch.set_default_dtype(torch.float64)
            torch.set_num_threads(1)
            torch.use_deterministic_algorithms(True)
            os.chdir(folder)
            os.environ["WEIGHT"] = "3"
            del os.environ["WARM_UP"]
        if step == 9:
            numpy.seterr(all="raise")
            torch.set_flush_denormal(True)
        STEPS_DONE.set(STEPS_DONE.get() + 1)
        decimal.getcontext().prec += 1
        logging.disable(logging.root.manager.disable + 1)
        counted = (STEPS_DONE.get(), decimal.getcontext().prec, logging.root.manager.disable)
        inputs = torch.linspace(0, 1, 160).view(10, 16) + torch.tensor(0.1) * step
        weight = float(os.environ["WEIGHT"]) + float(os.environ.get("WARM_UP", "0"))
        wanted = torch.sin(inputs.sum(1) * weight)
        optimizer.zero_grad()
        loss = (model(inputs.float()).view(-1) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        torch.set_grad_enabled(False)  # for the evaluation
        phases.append(
            (str(torch.get_default_dtype()), torch.get_num_threads(), numpy.geterr()["over"], counted, os.getcwd())
        )
        torch.set_grad_enabled(True)
        with open("losses.txt", "a") as log:
            log.write(f"{step}\n")
    final_state.write(out, losses, model, optimizer, phases=[phase[:4] for phase in phases], where=phases[-1][4][-5:])
    common.end()


main(*sys.argv[1:])
