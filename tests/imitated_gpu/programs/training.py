"""Trains a small model and reports a digest of its weights and the losses: PARALLEL is none, ddp or fsdp2, DEVICE cuda or cpu."""

from __future__ import annotations

import hashlib
import os

import torch
import torch.distributed as dist
from imitated_gpu import counts
from imitated_gpu.ranks import report
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

DEVICE = os.environ["DEVICE"]
PARALLEL = os.environ["PARALLEL"]
STEPS = int(os.environ.get("STEPS", "20"))
RANK = int(os.environ["RANK"])


def parallel(model: nn.Module) -> nn.Module:
    if PARALLEL == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=0.05)
    if PARALLEL == "fsdp2":
        mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
        for layer in model.children():
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def whole(parameter: torch.Tensor) -> torch.Tensor:
    tensor = parameter.full_tensor() if PARALLEL == "fsdp2" else parameter
    return tensor.detach().cpu()


def main() -> None:
    if PARALLEL != "none":
        dist.init_process_group({"cuda": "nccl", "cpu": "gloo"}[DEVICE])
    torch.manual_seed(0)
    layers = nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 10)
    module = nn.Sequential(*layers).to(DEVICE)
    model = parallel(module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **{os.environ["OPTIMIZER"]: True})
    data = torch.Generator().manual_seed(100 + RANK)
    losses = []
    for _ in range(STEPS):
        inputs = torch.randn(16, 64, generator=data).to(DEVICE)
        labels = torch.randint(0, 10, (16,), generator=data).to(DEVICE)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    digest = hashlib.sha256(b"".join(whole(parameter).numpy().tobytes() for parameter in module.parameters()))
    counted = counts()
    report(
        digest=digest.hexdigest(),
        losses=torch.stack(losses).tolist(),
        skipped=counted.skipped_kernels,
        queued=counted.queued_operators,
        waited_for=counted.waited_for_operators,
    )
    if PARALLEL != "none":
        dist.destroy_process_group()


main()
