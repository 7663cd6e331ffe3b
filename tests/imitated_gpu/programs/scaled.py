"""Trains with scaled gradients, as scripts did before torch 2.4, in a loop at module level. Usage: scaled.py OUT STEPS."""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

out = Path(sys.argv[1])
torch.cuda.set_device(0)
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.manual_seed(0)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # the name is the older one
    scaler = torch.cuda.amp.GradScaler(init_scale=256.0, growth_interval=3)
model = DistributedDataParallel(torch.nn.Linear(8, 4).cuda(), device_ids=[0])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
torch.manual_seed(5 + rank)
seen = []
while len(seen) < int(sys.argv[2]):
    for micro_step in range(2):
        model.require_backward_grad_sync = micro_step == 1
        loss = model(torch.randn(4, 8).cuda()).square().mean()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    seen.append((loss.item().hex(), scaler.get_scale()))
weights = [value.hex() for value in model.module.weight.detach().flatten().tolist()]
(out / f"rank{os.environ['RANK']}.json").write_text(json.dumps([seen, weights]))
dist.destroy_process_group()
