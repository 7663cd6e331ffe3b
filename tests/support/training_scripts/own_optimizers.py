"""Optimizers that keep what they compute from gradients in places of their own. Usage: own_optimizers.py OUT KEPT

KEPT: `number`, a step size that adapts, in its parameter group; `tensor`, momenta in a dict; `anew`, the same, bound anew in
each step; `history`, a list of norms; `own`, a norm of what this rank alone has computed; `told`, state that is drawn when there
is none and told to all ranks, which average in each update; `shared`, momenta of which each is on one rank alone, which tells the
others its update; `flagged`, the same, beside what the optimizer is built with.
"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Own(torch.optim.Optimizer):
    def __init__(self, parameters, kept):
        super().__init__(parameters, {"lr": 0.01, "scale": 1.0})
        self.kept, self.momenta, self.norms = kept, {}, []
        self.seen = 0.0
        if kept == "flagged":
            for p in self.param_groups[0]["params"]:
                self.state[p]["flag"] = True

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            norm = sum(float((p.grad**2).sum()) for p in group["params"])
            if self.kept == "number":
                group["scale"] = 0.9 * group["scale"] + 0.1 * norm
            elif self.kept == "history":
                self.norms.append(norm)
                group["scale"] = sum(self.norms[-3:]) / 3
            elif self.kept == "own":
                self.seen += norm * (1 + dist.get_rank())
            if self.kept in ("told", "shared", "flagged"):
                self._together(group) if self.kept == "told" else self._in_turns(group)
                continue
            for place, p in enumerate(group["params"]):
                self._update(place, p, group)

    def _together(self, group):
        for p in group["params"]:
            if not self.state[p]:
                self.state[p]["basis"] = basis = torch.randn(p.shape)
                dist.broadcast(basis, 0)
        for p in group["params"]:
            seen = self.state[p]["basis"]
            update = seen.mul_(0.9).add_(p.grad)
            shares = [torch.empty_like(update) for _ in range(dist.get_world_size())]
            dist.all_gather(shares, update)
            p.add_(sum(shares), alpha=-group["lr"] / len(shares))

    def _in_turns(self, group):
        for place, p in enumerate(group["params"]):
            update = torch.zeros_like(p)
            takes_part = self.kept == "shared" or self.state[p]["flag"]
            if takes_part and place % dist.get_world_size() == dist.get_rank():
                update += self.state[p].setdefault("momentum", torch.zeros_like(p)).mul_(0.9).add_(p.grad)
            dist.all_reduce(update)
            p.add_(update, alpha=-group["lr"])

    def _update(self, place, p, group):
        momentum = self.momenta.get(place, torch.zeros_like(p))
        if self.kept == "anew":
            momentum = self.momenta[place] = momentum * 0.9 + p.grad
        elif self.kept == "tensor":
            self.momenta.setdefault(place, momentum).mul_(0.9).add_(p.grad)
        else:
            momentum = p.grad
        p.add_(momentum, alpha=-group["lr"] / (1 + group["scale"]))


def main():
    out, kept = sys.argv[1:]
    common.start()
    torch.manual_seed(3)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = Own(model.parameters(), kept)
    losses = []
    for step in range(20):
        pace.work()
        optimizer.zero_grad()
        x = torch.rand(4, 8, generator=torch.Generator().manual_seed(2 * step + dist.get_rank()))
        loss = common.loss_of(model, x, x.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    momenta = [float(momentum.sum()) for momentum in optimizer.momenta.values()]
    numbers = [optimizer.param_groups[0]["scale"], optimizer.seen, *optimizer.norms, *momenta]
    final_state.write(out, losses + numbers, model, optimizer)
    common.end()


main()
