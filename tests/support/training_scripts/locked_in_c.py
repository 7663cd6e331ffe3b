"""Data parallel training with a hook in its backward that calls C code. Usage: locked_in_c.py OUT

LOCKED=RANK: once, in step 15, that code sleeps for good on this rank, and keeps the interpreter's lock. STRUCK: a file that
remembers it.
"""

import ctypes
import functools
import os
import sys

import common
import final_state
import pace
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, AT = 25, 15

rank, _ = common.start()
torch.manual_seed(3)
body = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
model = DistributedDataParallel(body)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
own = torch.Generator().manual_seed(100 + rank)
losses = []


def call_c(step, gradient):
    if step == AT and os.environ.get("LOCKED") == str(rank):
        try:
            os.close(os.open(os.environ["STRUCK"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return gradient
        ctypes.PyDLL(None).pause()
    return gradient


for step in range(1, STEPS + 1):
    pace.work()
    x = torch.randn(8, 6, generator=own)
    y = model(x)
    y.register_hook(functools.partial(call_c, step))
    loss = (y - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

final_state.write(sys.argv[1], losses, model, optimizer)
common.end()
