"""fully_shard. Usage: parallel_fsdp2.py pure|hsdp|mixed|offload|noreshard"""

import sys

import ending
import pace
import setting
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def shard(model, kind):
    world_size = dist.get_world_size()
    options = {}
    if kind == "hsdp":
        options["mesh"] = init_device_mesh(setting.DEVICE, (2, world_size // 2), mesh_dim_names=("replicate", "shard"))
    else:
        options["mesh"] = init_device_mesh(setting.DEVICE, (world_size,))
    if kind == "mixed":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if kind == "offload":
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
    if kind == "noreshard":
        options["reshard_after_forward"] = False
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def main():
    kind = sys.argv[1]
    # what is offloaded is clipped on the processor
    _, world_size = setting.start(**({"backend": setting.BACKENDS} if kind == "offload" else {}))
    data = setting.dataset(6 * 4 * world_size)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    model = shard(setting.network(), kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    losses, norms = [], []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            pace.work()
            loss = setting.loss_of(model, x, y.bfloat16() if kind == "mixed" else y)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            norms.append(norm.full_tensor().item() if hasattr(norm, "full_tensor") else norm.item())
    ending.write(losses, model=model, optimizer=optimizer, scheduler=scheduler, norms=norms)
    setting.end()


if __name__ == "__main__":
    main()
