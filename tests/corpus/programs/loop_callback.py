"""An engine with handlers; the loop over batches is in the engine, the step in a function that it is given."""

import ending
import pace
import setting
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


class Engine:
    def __init__(self, process):
        self.process, self.handlers = process, {}
        self.iteration, self.epoch, self.output = 0, 0, None
        self.metrics = {}

    def on(self, event):
        def register(handler):
            self.handlers.setdefault(event, []).append(handler)
            return handler

        return register

    def fire(self, event):
        for handler in self.handlers.get(event, []):
            handler(self)

    def run(self, batches, epochs):
        self.fire("started")
        while self.epoch < epochs:
            self.epoch += 1
            self.fire("epoch started")
            for batch in batches:
                self.iteration += 1
                self.output = self.process(self, batch)
                self.fire("iteration completed")
            self.fire("epoch completed")
        return self.metrics


def main():
    _, world_size = setting.start()
    data = setting.dataset(6 * 4 * world_size)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    model = DistributedDataParallel(setting.network())
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [6, 12], gamma=0.5)
    losses = []

    def step(engine, batch):
        pace.work()
        x, y = batch
        optimizer.zero_grad()
        loss = setting.loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        return loss.item()

    trainer = Engine(step)
    trainer.on("epoch started")(lambda engine: sampler.set_epoch(engine.epoch))

    @trainer.on("iteration completed")
    def record(engine):
        scheduler.step()
        losses.append(engine.output)
        engine.metrics["smooth"] = 0.9 * engine.metrics.get("smooth", engine.output) + 0.1 * engine.output

    @trainer.on("epoch completed")
    def summarise(engine):
        engine.metrics[f"epoch {engine.epoch}"] = sum(losses[-len(loader) :])

    metrics = trainer.run(loader, 3)
    ending.write(
        losses, model=model, optimizer=optimizer, scheduler=scheduler, metrics=metrics, counters=[trainer.iteration]
    )
    setting.end()


if __name__ == "__main__":
    main()
