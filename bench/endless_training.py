"""Data parallel training without an end, for `torchrelay bench detect`. DETECT_HANG=RANK:STEP:FILE hangs once, and makes FILE."""

import os
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEP_S = 0.1


def hang(step):
    rank, at, file = os.environ.get("DETECT_HANG", "::").split(":", 2)
    if (rank, at) == (os.environ["RANK"], str(step)):
        try:
            os.close(os.open(file, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        threading.Event().wait()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step = 0
    while True:
        hang(step)
        step += 1
        optimizer.zero_grad()
        model(torch.randn(4, 32)).square().mean().backward()
        optimizer.step()
        time.sleep(STEP_S)


if __name__ == "__main__":
    main()
