"""Trains by numbers that another program sends: an engine that is asked, a stream that is read.

Usage: programs_read.py OUT KIND
"""

import subprocess
import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ENGINE = "n = 0\nwhile True:\n    input()\n    n += 1\n    print(n, flush=True)"
STREAM = "for n in range(100000):\n    print(n)"


def main(out, kind):
    common.start()
    code = {"engine": ENGINE, "stream": STREAM}[kind]
    program = subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses, seen = [], []
    for _ in range(24):
        pace.hold(len(losses) + 1)
        pace.work()
        if kind == "engine":
            program.stdin.write("next\n")
            program.stdin.flush()
        seen.append(int(program.stdout.readline()))
        optimizer.zero_grad()
        loss = (model(torch.full((4, 8), seen[-1] / 100)) - dist.get_rank()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    final_state.write(out, losses, model, optimizer, seen=seen)
    program.kill()
    common.end()


main(*sys.argv[1:])
