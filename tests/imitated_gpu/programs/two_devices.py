"""Trains on one device, and draws what it adds to each batch on another one. Usage: two_devices.py OUT."""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    own, beside = (torch.device("cuda", 2 * int(os.environ["LOCAL_RANK"]) + place) for place in range(2))
    torch.cuda.set_device(own)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.2)).to(own))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(5 + dist.get_rank())
    losses = []
    for _ in range(25):
        noise = torch.randn(4, 8, device=beside)
        torch.cuda.synchronize(beside)  # the imitation does not let one device's stream wait for another's
        noise = noise.to(own)
        loss = model(torch.ones(4, 8, device=own) + noise).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    (Path(sys.argv[1]) / f"rank{os.environ['RANK']}.json").write_text(json.dumps(losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
