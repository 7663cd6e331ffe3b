"""What training does beside its steps.

Usage: side_work.py evaluation|logging|own_results|save|dcp|dcp_async|tensorboard|profiler|clip|early_break|phases
"""

import contextlib
import os
import sys

import ending
import pace
import setting
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


class Run:
    def __init__(self, kind):
        self.kind = kind
        self.rank, world_size = setting.start()
        self.world_size = world_size
        data = setting.dataset(6 * 4 * world_size)
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, batch_size=4, sampler=self.sampler)
        self.held_out = DataLoader(setting.dataset(16), batch_size=4)
        self.model = DistributedDataParallel(setting.network())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)
        self.losses, self.kept, self.saved, self.pending = [], [], [], None
        # a thread saves: its collectives must not come between those of training
        self.saving = dist.new_group(backend="gloo") if kind == "dcp_async" else None
        self.writer = None
        if kind == "tensorboard" and self.rank == 0:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(os.path.join(setting.out(), "board"))

    def step(self, x, y):
        pace.work()
        self.optimizer.zero_grad()
        loss = setting.loss_of(self.model, x, y)
        loss.backward()
        if self.kind == "clip":
            self.kept.append(torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5).item())
        self.optimizer.step()
        self.scheduler.step()
        self.losses.append(loss.item())
        return loss.detach()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        total, count = torch.zeros(2, 1, device=setting.DEVICE)
        for x, y in self.held_out:
            total += setting.loss_of(self.model.module, x, y)
            count += 1
            pace.strike("evaluation")
        dist.all_reduce(total)
        dist.all_reduce(count)
        mine = self.model.module(x.to(setting.DEVICE))
        outputs = [torch.zeros_like(mine) for _ in range(self.world_size)]
        dist.all_gather(outputs, mine)
        self.model.train()
        return (total / count).item(), torch.cat(outputs).sum().item()

    def log(self, loss):
        mean = loss.clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG if dist.get_backend() == "nccl" else dist.ReduceOp.SUM)
        norm = torch.stack([p.grad.norm() for p in self.model.parameters()]).norm()
        pace.strike("logging")
        dist.reduce(norm, dst=0)
        self.kept.append([mean.item(), norm.item() if self.rank == 0 else None])
        if self.kind == "own_results":
            share, shares = torch.zeros_like(norm), [norm * (i + 1) for i in range(dist.get_world_size())]
            dist.scatter(share, shares if self.rank == 0 else None, src=0)
            self.kept.append(share.item())

    def save(self, step):
        if self.rank == 0:
            state = {"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict(), "step": step}
            path = os.path.join(setting.out(), "checkpoint.pt")
            torch.save(state, path + ".new")
            pace.strike("saving")
            os.replace(path + ".new", path)
        else:
            pace.strike("saving")  # where it waits for rank 0
        dist.barrier()
        loaded = torch.load(os.path.join(setting.out(), "checkpoint.pt"))
        self.kept.append(ending.digest_of([loaded["model"], loaded["step"]]))

    def save_dcp(self, step):
        state = {"model": self.model.module.state_dict(), "step": step}
        folder = os.path.join(setting.out(), f"dcp-{step}")
        pace.strike("saving")
        if self.kind == "dcp":
            dcp.save(state, checkpoint_id=folder)
        else:
            if self.pending is not None:
                self.pending.result()
            self.pending = dcp.async_save(state, checkpoint_id=folder, process_group=self.saving)
        self.saved.append(step)

    def load_dcp(self):
        """What the checkpoints hold."""
        for step in self.saved:
            empty = {name: torch.zeros_like(value) for name, value in self.model.module.state_dict().items()}
            state = {"model": empty, "step": 0}
            dcp.load(state, checkpoint_id=os.path.join(setting.out(), f"dcp-{step}"))
            self.kept.append(ending.digest_of([state["model"], state["step"]]))

    def after(self, loss):
        step = len(self.losses)
        if self.kind in ("logging", "own_results"):
            self.log(loss)
        elif self.kind == "save" and step % 4 == 0:
            self.save(step)
        elif self.kind in ("dcp", "dcp_async") and step % 5 == 0:
            self.save_dcp(step)
        elif self.writer is not None:
            self.writer.add_scalar("loss", loss.item(), step)
            self.writer.add_histogram("head", self.model.module.head.weight, step)

    def epochs(self, first, last):
        for epoch in range(first, last):
            self.sampler.set_epoch(epoch)
            for i, (x, y) in enumerate(self.loader):
                if self.kind == "early_break" and i == 5:
                    break
                self.after(self.step(x, y))
            if self.kind == "evaluation":
                self.kept.append(self.evaluate())

    def warm_up(self):
        """A first phase of training: the head alone."""
        for p in self.model.parameters():
            p.requires_grad_(True)
        for x, y in self.loader:
            self.step(x, y)

    def finish(self):
        if self.pending is not None:
            self.pending.result()
        self.load_dcp()
        if self.writer is not None:
            self.writer.close()
        ending.write(self.losses, model=self.model, optimizer=self.optimizer, scheduler=self.scheduler, kept=self.kept)
        setting.end()


def main():
    run = Run(sys.argv[1])
    profiler = contextlib.nullcontext()
    if run.kind == "profiler":
        profiler = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            schedule=torch.profiler.schedule(wait=2, warmup=1, active=2, repeat=1),
        )
    if run.kind == "phases":
        run.warm_up()
    with profiler as p:
        if p is None:
            run.epochs(0, 3)
        else:
            for epoch in range(3):
                run.sampler.set_epoch(epoch)
                for x, y in run.loader:
                    run.step(x, y)
                    p.step()
    run.finish()


if __name__ == "__main__":
    main()
