"""lightning over a stream of unknown length, a metric of torchmetrics, a plateau scheduler; `manual`: steps of one's own."""

import os
import sys

import ending
import lightning
import pace
import setting
import torch
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    """Each rank's share, with noise. Its length is unknown: lightning draws a batch ahead to see the end."""

    def __init__(self, count):
        self.x, self.y = setting.data(count)

    def __iter__(self):
        for place in range(int(os.environ["RANK"]), len(self.x), int(os.environ["WORLD_SIZE"])):
            yield self.x[place] + 0.01 * torch.rand(1), self.y[place]


class Net(lightning.LightningModule):
    def __init__(self, manual):
        super().__init__()
        self.net = setting.network()
        self.error = torchmetrics.MeanAbsoluteError()
        self.losses = []
        self.automatic_optimization = not manual

    def training_step(self, batch, index):
        x, y = batch
        out = self.net(x)
        loss = nn.functional.mse_loss(out, y)
        self.losses.append(loss.item())
        self.error(out, y)
        self.log("error", self.error, on_step=False, on_epoch=True)
        self.log("loss", loss, on_epoch=True, sync_dist=True)
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def on_train_batch_end(self, *args):
        pace.work()

    def on_train_epoch_end(self):
        if not self.automatic_optimization:
            self.lr_schedulers().step(self.trainer.callback_metrics["loss_epoch"])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "loss_epoch"}}


def main():
    lightning.seed_everything(7)
    module = Net("manual" in sys.argv)
    trainer = lightning.Trainer(
        accelerator=setting.DEVICE,
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=setting.out(),
    )
    trainer.fit(module, DataLoader(Stream(32 * int(os.environ["WORLD_SIZE"])), batch_size=4))
    ending.write(
        module.losses,
        model=module,
        optimizer=trainer.optimizers[0],
        scheduler=trainer.lr_scheduler_configs[0].scheduler,
        metrics={name: value.item() for name, value in trainer.callback_metrics.items()},
    )


if __name__ == "__main__":
    main()
