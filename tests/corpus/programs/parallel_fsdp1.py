"""FullyShardedDataParallel, the first FSDP."""

import functools

import ending
import pace
import setting
import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def main():
    _, world_size = setting.start()
    data = setting.dataset(6 * 4 * world_size)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={setting.Block})
    model = FullyShardedDataParallel(
        setting.network(), auto_wrap_policy=policy, device_id=setting.device(), use_orig_params=True
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    losses, norms = [], []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            pace.work()
            optimizer.zero_grad()
            loss = setting.loss_of(model, x, y)
            loss.backward()
            norms.append(model.clip_grad_norm_(1.0).item())
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
    ending.write(losses, model=model, optimizer=optimizer, scheduler=scheduler, norms=norms)
    setting.end()


if __name__ == "__main__":
    main()
