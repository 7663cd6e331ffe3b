"""A loop of one's own with accelerate: prepare, accumulate, gather_for_metrics."""

import ending
import pace
import setting
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader


def main():
    accelerator = Accelerator(cpu=setting.DEVICE == "cpu", gradient_accumulation_steps=2)
    set_seed(7, device_specific=True)
    data = setting.dataset(14 * 4 * accelerator.num_processes)
    loader = DataLoader(data, batch_size=4, shuffle=True)
    held_out = DataLoader(setting.dataset(16), batch_size=4)
    model = setting.network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    model, optimizer, loader, held_out, scheduler = accelerator.prepare(model, optimizer, loader, held_out, scheduler)
    losses, kept = [], []
    for _epoch in range(2):
        model.train()
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = setting.loss_of(model, x, y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    pace.work()
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        model.eval()
        for x, _y in held_out:
            pace.strike("evaluation")
            with torch.no_grad():
                kept.append(accelerator.gather_for_metrics(model(x)).mean().item())
    ending.write(losses, model=model, optimizer=optimizer.optimizer, scheduler=scheduler.scheduler, kept=kept)
    accelerator.end_training()


if __name__ == "__main__":
    main()
