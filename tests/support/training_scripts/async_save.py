"""Checkpoints that a thread saves while training goes on. Usage: async_save.py OUT ddp|sharded|waits|cached SAVES

SAVES is a list such as 4:7,8:11: what is begun after step 4 is written when step 7 begins; with 4:7:end all write at once, and
it is ended when step 7 begins. With `waits`, the step behind it waits until it is over. With `cached` no thread saves, and ranks
keep their plans from one save to the next.
"""

import os
import sys
import threading

import common
import final_state
import pace
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS = 18
PROGRESS, MOVED = [0], threading.Condition()


class SlowWriter(dcp.FileSystemWriter):
    def __init__(self, path, until, place="write"):
        super().__init__(path)
        self.until, self.place = int(until), place

    def wait(self, place):
        with MOVED:
            MOVED.wait_for(lambda: place != self.place or PROGRESS[0] >= self.until)

    def write_data(self, plan, planner):
        self.wait("write")
        if os.environ.get("STRIKE", "") == f"writing:{os.environ['RANK']}":
            pace.wait_for("waiting")
        pace.strike("writing")
        return super().write_data(plan, planner)

    def finish(self, metadata, results):
        self.wait("end")
        super().finish(metadata, results)


def move_on(step):
    with MOVED:
        PROGRESS[0] = step
        MOVED.notify_all()


def build(kind):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 8192), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8192, 1))
    if kind != "sharded":
        return DistributedDataParallel(model)
    return fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))


def local(value):
    return value.to_local() if hasattr(value, "to_local") else value


def main():
    out, kind = sys.argv[1:3]
    saves = {int(step): how for step, *how in (save.split(":") for save in sys.argv[3].split(","))}
    rank, _ = common.start()
    model, saving = build(kind), dist.new_group(backend="gloo")
    torch.manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x, y = common.data(64)
    losses, waited, pending = [], [], None
    for step in range(1, STEPS + 1):
        pace.hold(step)
        pace.work()
        move_on(step)
        if kind == "waits" and pending is not None:
            if rank == 0 and "STRIKE" in os.environ:
                pace.mark("waiting")
            pending.result()
            waited.append(step)
            pending = None
        chosen = torch.randint(len(x), (4,))
        optimizer.zero_grad()
        loss = common.loss_of(model, x[chosen], y[chosen])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step in saves:
            if pending is not None:
                pending.result()
            state = {"model": model.state_dict(), f"own-{rank}": {"rng": torch.get_rng_state(), "losses": list(losses)}}
            writer = SlowWriter(os.path.join(out, f"saved-{step}"), *saves[step])
            if kind == "cached":
                planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
                dcp.save(state, storage_writer=writer, planner=planner)
            else:
                pending = dcp.async_save(state, storage_writer=writer, process_group=saving)
    move_on(2 * STEPS)
    if pending is not None:
        pending.result()
    saved = []
    for step in saves:
        state = {"model": model.state_dict(), f"own-{rank}": {"rng": torch.get_rng_state(), "losses": []}}
        dcp.load(state, checkpoint_id=os.path.join(out, f"saved-{step}"))
        saved.append([*map(local, state["model"].values()), *state[f"own-{rank}"].values()])
    final_state.write(
        out, losses, nn.Module(), torch.optim.SGD([torch.zeros(1)]), saved=saved, waited=waited, step=step
    )
    common.end()


if __name__ == "__main__":
    main()
