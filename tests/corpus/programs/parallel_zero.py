"""ZeroRedundancyOptimizer under DistributedDataParallel: each rank has the optimizer's state of some parameters."""

import ending
import pace
import setting
import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def main():
    _, world_size = setting.start()
    data = setting.dataset(6 * 4 * world_size)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    model = DistributedDataParallel(setting.network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    losses = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            pace.work()
            optimizer.zero_grad()
            loss = setting.loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
    ending.write(losses, model=model, shard=optimizer.optim, scheduler=scheduler)
    setting.end()


if __name__ == "__main__":
    main()
