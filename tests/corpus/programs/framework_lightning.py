"""A LightningModule under lightning's Trainer: DDP, accumulation, validation in mid-epoch, metrics per epoch, checkpoints."""

import os

import ending
import lightning
import pace
import setting
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = setting.network()
        self.losses, self.running = [], 0.0

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.losses.append(loss.item())
        self.running = 0.9 * self.running + 0.1 * loss.item()
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        if not self.trainer.sanity_checking:
            pace.strike("evaluation")
        self.log("val_loss", nn.functional.mse_loss(self.net(x), y), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Count(Callback):
    def __init__(self):
        self.batches, self.epochs = 0, []

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        pace.work()
        self.batches += 1

    def on_save_checkpoint(self, trainer, module, checkpoint):
        pace.strike("saving")

    def on_train_epoch_end(self, trainer, module):
        self.epochs.append({name: value.item() for name, value in trainer.callback_metrics.items()})


def main():
    lightning.seed_everything(7)
    count, module = Count(), Net()
    trainer = lightning.Trainer(
        accelerator=setting.DEVICE,
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=2,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        val_check_interval=0.5,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[count, ModelCheckpoint(dirpath=os.path.join(setting.out(), "checkpoints"), every_n_train_steps=5)],
        default_root_dir=setting.out(),
    )
    size = int(os.environ["WORLD_SIZE"])
    train = DataLoader(setting.dataset(16 * 4 * size), batch_size=4, shuffle=True)
    trainer.fit(module, train, DataLoader(setting.dataset(8 * size), batch_size=4))
    ending.write(
        module.losses,
        model=module,
        optimizer=trainer.optimizers[0],
        scheduler=trainer.lr_scheduler_configs[0].scheduler,
        counters=[trainer.global_step, trainer.current_epoch, count.batches, count.epochs, module.running],
        metrics={name: value.item() for name, value in trainer.callback_metrics.items()},
    )


if __name__ == "__main__":
    main()
