"""Data parallel training without an end, for `torchrelay bench detect`."""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEP_S = 0.1


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    while True:
        optimizer.zero_grad()
        model(torch.randn(4, 32)).square().mean().backward()
        optimizer.step()
        time.sleep(STEP_S)


if __name__ == "__main__":
    main()
