"""DistributedDataParallel with what stands between its backward and the communicator. Usage: hooks.py OUT KIND"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    powerSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Summed(torch.autograd.Function):
    """Its gradient is the sum of all ranks': a communication of the script's own inside of a backward."""

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class Body(nn.Module):
    """One layer is computed again in backward, and one is used twice. `kind`: `reentrant` (the former in a backward of its own)."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.first, self.twice, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 1)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        if self.kind == "reentrant":  # DistributedDataParallel takes each parameter once there
            return self.last(checkpoint(lambda x: torch.tanh(self.twice(x)), x, use_reentrant=True))
        x = checkpoint(lambda x: torch.tanh(self.twice(x)), x, use_reentrant=False)
        x = self.last(self.dropout(torch.tanh(self.twice(x))))
        return Summed.apply(x) if self.kind == "summed" else x


class Counted:
    def __init__(self):
        self.buckets, self.residual = 0, {}


def rounded(state, bucket):
    """Rounds, and adds what was lost to the next step's gradients."""
    state.buckets += 1
    exact = bucket.buffer() + state.residual.get(bucket.buffer().numel(), 0.0)
    sent = (exact * 1024).round() / 1024
    state.residual[bucket.buffer().numel()] = exact - sent
    work = dist.all_reduce(sent, async_op=True)
    return work.get_future().then(lambda done: done.value()[0] / dist.get_world_size())


def averaged(state, bucket, growing):
    bucket.buffer().mul_(1 + 0.01 * growing)
    return default_hooks.allreduce_hook(state, bucket)


def closing_over(seen):
    def hook(state, bucket):
        seen.append(bucket.index())
        return averaged(state, bucket, len(seen))

    return hook


def by_node(node, bucket):
    """Reduces within the node first, which may have one rank."""
    default_hooks.allreduce_hook(node, bucket).wait()
    return default_hooks.allreduce_hook(None, bucket)


class Growing:
    def __init__(self):
        self.calls = 0

    def hook(self, state, bucket):
        self.calls += 1
        return averaged(state, bucket, self.calls)


def wrap(kind):
    is_power = kind in ("power", "warm")  # with several buckets it hangs on gloo by itself
    model = DistributedDataParallel(Body(kind), bucket_cap_mb=25 if is_power else 0.0005, static_graph=kind == "static")
    if kind == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook))
    elif kind == "builtin":
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    elif kind == "own":
        model.register_comm_hook(Counted(), rounded)
    elif kind == "closure":
        model.register_comm_hook(None, closing_over([]))
    elif kind == "method":
        model.register_comm_hook(None, Growing().hook)
    elif kind == "hidden":
        model.register_comm_hook(None, default_hooks.fp16_compress_wrapper(closing_over([])))
    elif is_power:
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=3, warm_start=kind == "warm")
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif kind == "by-node":
        alone, _ = dist.new_subgroups(1)
        model.register_comm_hook(alone, by_node)
    return model


def main():
    out, kind = sys.argv[1:]
    _, world_size = common.start()
    model = wrap(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    sampler = DistributedSampler(TensorDataset(*common.data(8 * 4 * world_size)))
    loader = DataLoader(sampler.dataset, batch_size=4, sampler=sampler)
    losses = []
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for x, y in loader:
            pace.hold(len(losses) + 1)
            pace.work()
            loss = common.loss_of(model.module if kind == "bypassed" else model, x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    final_state.write(out, losses, model, optimizer)
    common.end()


if __name__ == "__main__":
    main()
