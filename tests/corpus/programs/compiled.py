"""A compiled model with `fullgraph=True`; how often it was compiled, and its graph breaks, are part of the result."""

import ending
import pace
import setting
import torch
import torch._dynamo
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def main():
    _, world_size = setting.start()
    data = setting.dataset(6 * 4 * world_size)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    plain = setting.network()
    model = DistributedDataParallel(plain)
    compiled = torch.compile(plain, backend="aot_eager", fullgraph=True)
    model.module = compiled
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
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
    counters = torch._dynamo.utils.counters
    ending.write(
        losses,
        model=plain,
        optimizer=optimizer,
        scheduler=scheduler,
        graphs=counters["stats"]["unique_graphs"],
        breaks=dict(counters["graph_break"]),
    )
    setting.end()


if __name__ == "__main__":
    main()
