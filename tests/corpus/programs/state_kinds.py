"""State beside model and optimizer.

Usage: state_kinds.py batchnorm|ema|best|scaler|plateau|swa|metrics|generators|early_stopping
"""

import collections
import copy
import random
import sys
from dataclasses import dataclass, field

import ending
import numpy
import pace
import setting
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


@dataclass
class Metrics:
    recent: collections.deque = field(default_factory=lambda: collections.deque(maxlen=5))
    counts: collections.Counter = field(default_factory=collections.Counter)
    curves: collections.defaultdict = field(default_factory=lambda: collections.defaultdict(list))
    nested: dict = field(
        default_factory=lambda: {"loss": {"best": None, "last": torch.zeros((), device=setting.DEVICE)}}
    )

    def update(self, step, loss):
        self.recent.append(loss.detach())
        self.counts["below 1" if loss.item() < 1 else "above"] += 1
        self.curves[step % 3].append((step, loss.item()))
        self.nested["loss"]["last"] += loss.detach()
        if self.nested["loss"]["best"] is None or loss < self.nested["loss"]["best"]:
            self.nested["loss"]["best"] = loss.detach().clone()


class Noise:
    """Generators of all makes, held by an object."""

    def __init__(self, seed):
        self.python = random.Random(seed)
        self.numpy = numpy.random.default_rng(seed)
        self.torch = torch.Generator().manual_seed(seed)
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        rows = torch.randperm(len(x), generator=self.torch)
        noise = torch.from_numpy(self.numpy.standard_normal(tuple(x.shape)).astype("float32"))
        return x[rows] * self.python.uniform(0.9, 1.1) * random.uniform(0.9, 1.1) + 0.1 * noise * numpy.random.rand()


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.bad, self.best = patience, 0, float("inf")

    def should_stop(self, value):
        if value < self.best:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad > self.patience


class WithBatchNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 1))

    def forward(self, x):
        return self.layers(x)


@torch.no_grad()
def validate(model):
    model.eval()
    x, y = setting.data(16)
    loss = setting.loss_of(model, x, y).item()
    model.train()
    return loss


class Training:
    def __init__(self, kind, rank, world_size):
        self.kind = kind
        data = setting.dataset(6 * 4 * world_size)
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, batch_size=4, sampler=self.sampler)
        plain = WithBatchNorm().to(setting.DEVICE) if kind == "batchnorm" else setting.network()
        self.model = DistributedDataParallel(plain)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)
        self.losses, self.extra = [], {}
        self.scaler = torch.amp.GradScaler(
            setting.DEVICE, init_scale=1024.0, growth_interval=4, enabled=kind == "scaler"
        )
        make = getattr(self, f"make_{kind}", None)
        if make:
            make(rank)

    def make_ema(self, rank):
        self.extra["ema"] = AveragedModel(self.model.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.extra["own"] = copy.deepcopy(self.model.module)

    def make_best(self, rank):
        self.extra["best"] = [float("inf"), None]

    def make_plateau(self, rank):
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, patience=0, factor=0.5)
        self.extra["plateau"] = self.plateau

    def make_swa(self, rank):
        self.extra["swa"] = AveragedModel(self.model.module)
        self.extra["swalr"] = SWALR(self.optimizer, swa_lr=5e-3, anneal_epochs=2)

    def make_metrics(self, rank):
        self.metrics = Metrics()

    def make_generators(self, rank):
        self.noise = Noise(rank)

    def make_early_stopping(self, rank):
        self.stopping = EarlyStopping(2)

    def step(self, x, y):
        pace.work()
        if self.kind == "generators":
            x = self.noise(x)
        self.optimizer.zero_grad()
        with torch.autocast(setting.DEVICE, dtype=torch.bfloat16, enabled=self.kind == "scaler"):
            loss = setting.loss_of(self.model, x, y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.losses.append(loss.item())
        after = getattr(self, f"after_{self.kind}", None)
        if after:
            after(loss)

    def after_ema(self, loss):
        self.extra["ema"].update_parameters(self.model.module)
        with torch.no_grad():
            for old, new in zip(self.extra["own"].parameters(), self.model.module.parameters()):
                old.mul_(0.95).add_(new, alpha=0.05)

    def after_metrics(self, loss):
        self.metrics.update(len(self.losses), loss)

    def end_epoch(self, epoch):
        """Whether to stop."""
        value = validate(self.model.module)
        if self.kind == "plateau":
            self.plateau.step(value)
        elif self.kind == "swa" and epoch >= 1:
            self.extra["swa"].update_parameters(self.model.module)
            self.extra["swalr"].step()
        else:
            self.scheduler.step()
        if self.kind == "best" and value < self.extra["best"][0]:
            self.extra["best"] = [value, copy.deepcopy(self.model.module.state_dict())]
        return self.kind == "early_stopping" and self.stopping.should_stop(value)

    def fit(self, epochs):
        for epoch in range(epochs):
            self.sampler.set_epoch(epoch)
            for x, y in self.loader:
                self.step(x, y)
            if self.end_epoch(epoch):
                break

    def leave(self):
        parts = dict(self.extra)
        if self.kind == "metrics":
            m = self.metrics
            parts["metrics"] = [m.recent, dict(m.counts), dict(m.curves), m.nested]
        if self.kind == "generators":
            parts["noise"] = [self.noise.python, self.noise.numpy, self.noise.torch, self.noise.calls]
        if self.kind == "early_stopping":
            parts["stopping"] = [self.stopping.bad, self.stopping.best]
        parts.update(model=self.model, optimizer=self.optimizer, scheduler=self.scheduler, scaler=self.scaler)
        ending.write(self.losses, **parts)


def main():
    training = Training(sys.argv[1], *setting.start())
    training.fit(3)
    training.leave()
    setting.end()


if __name__ == "__main__":
    main()
