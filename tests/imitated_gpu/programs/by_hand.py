"""Trains without a wrapper: gradients are reduced by hand, values are checked, and results are shared after each step.

Usage: by_hand.py OUT [eager] [slow] [capturable] [WHAT:RANK:STEP[:PLACE[:always]]]

`eager`: with a device for the job, so that further groups are split from the first one. `slow`: each step takes SLOW_S longer.
`capturable`: the optimizer is not fused, and keeps its count of steps on the device all the same.
WHAT happens once, in one rank or in all (`*`), at a PLACE of a step: a fault of `imitated_gpu.faults` is ordered, a signal's name
strikes the process (SIGABRT), `assert` queues an operator that fails on the device. `always`: in each process that comes there.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from imitated_gpu.faults import FOLDER_VARIABLE, Fault, Orders

STEPS, SLOW_S = 30, 0.2
PLACES = ("head", "backward", "optimizer", "behind")
"""`optimizer`: in its step, where gradients are final; `behind`: the step, before results are shared."""


class Strikes:
    """What the command line asks for. Who does a step again is not struck again: a file says that it has happened."""

    def __init__(self, options, rank, device):
        self._asked = [option for option in options if ":" in option]
        self._rank, self._device = rank, device
        self.step = 0

    def at(self, place):
        for option in self._asked:
            what, rank, step, *rest = option.split(":")
            where = rest[0] if rest else "head"
            assert where in PLACES, option
            is_here = rank in ("*", str(self._rank)) and (int(step), where) == (self.step, place)
            if is_here and ("always" in rest or self._is_first(f"{option}.{self._rank}")):
                self._strike(what, everywhere=rank == "*")

    @staticmethod
    def _is_first(name):
        try:
            os.close(os.open(Path(os.environ[FOLDER_VARIABLE]) / name, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _strike(self, what, everywhere):
        folder = Path(os.environ[FOLDER_VARIABLE])
        if what.startswith("SIG"):
            os.kill(os.getpid(), signal.Signals[what])
        elif what == "assert":
            table = torch.zeros(4, 4, device=self._device)
            torch.nn.functional.embedding(torch.tensor([9]).to(self._device), table)
        else:
            Orders(folder).order(Fault(what), None if everywhere else os.getpid())


def main():
    out, options = Path(sys.argv[1]), sys.argv[2:]
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device if "eager" in options else None)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    strikes = Strikes(options, rank, device)
    pair = dist.new_group(list(range(world_size)), group_desc="pair")
    host = dist.new_group(backend="gloo")
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1))
    model = model.to(device)
    kind = {"capturable": True} if "capturable" in options else {"fused": True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **kind)
    optimizer.register_step_pre_hook(lambda *_: strikes.at("optimizer"))
    torch.manual_seed(10 + rank)
    fixed = torch.Generator().manual_seed(rank)
    history, best = [], float("inf")
    for step in range(STEPS):
        strikes.step = step + 1
        strikes.at("head")
        time.sleep(SLOW_S if "slow" in options else 0)  # stands for work
        x = torch.randn(16, 8, generator=fixed).to(device)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.register_hook(lambda _: strikes.at("backward"))
        shared = loss.detach().clone()
        dist.all_reduce(shared, group=pair)
        if not torch.isfinite(shared):
            sys.exit(3)
        loss.backward()
        works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
        for work in works:
            work.wait()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        strikes.at("behind")
        seen = torch.tensor([loss.item(), norm.item()], device=device)
        dist.all_reduce(seen)
        told = [None] * world_size
        dist.all_gather_object(told, (rank, step, loss.item()), group=pair)
        count = torch.ones(1)
        dist.all_reduce(count, group=host)
        best = min(best, seen[0].item())
        history.append([seen.tolist(), told, count.item(), best])
        if step == 12:
            late = dist.new_group(list(range(world_size)))
        if step > 12:
            total = torch.full((3,), float(step), device=device)
            dist.broadcast(total, src=step % world_size, group=late)
            history[-1].append(total.tolist())
    with torch.no_grad():
        digest = [p.double().sum().item() for p in model.parameters()]
    (out / f"rank{rank}.json").write_text(json.dumps([history, digest]))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
