"""Pipeline parallel. Usage: parallel_pipeline.py 1f1b|interleaved|1f1b_dp"""

import sys

import ending
import pace
import setting
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.nn.parallel import DistributedDataParallel

MICRO_BATCHES, BATCH = 4, 8


def stages_of(count):
    """A network cut into `count` pieces."""
    model = setting.network(depth=count)
    pieces = []
    for i, block in enumerate(model.blocks):
        first = [model.first] if i == 0 else []
        last = [model.head] if i == count - 1 else []
        pieces.append(nn.Sequential(*first, block, *last))
    return pieces


def build(kind):
    """Schedule, this rank's modules, whether it is the first or the last in the pipeline, its place in the data dimension."""
    world_size = dist.get_world_size()
    pipelines = 2 if kind == "1f1b_dp" else 1
    depth = world_size // pipelines
    mesh = init_device_mesh(setting.DEVICE, (pipelines, depth), mesh_dim_names=("dp", "pp"))
    group, place = mesh["pp"].get_group(), mesh["pp"].get_local_rank()
    if kind == "interleaved":
        pieces = stages_of(2 * depth)
        mine = [pieces[place], pieces[place + depth]]
        stages = [
            PipelineStage(m, place + i * depth, 2 * depth, setting.device(), group=group) for i, m in enumerate(mine)
        ]
        schedule = ScheduleInterleaved1F1B(stages, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    else:
        mine = [stages_of(depth)[place]]
        module = mine[0]
        if pipelines > 1:
            module = DistributedDataParallel(module, process_group=mesh["dp"].get_group())
        stage = PipelineStage(module, place, depth, setting.device(), group=group)
        schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    return schedule, mine, place == 0, place == depth - 1, mesh["dp"].get_local_rank()


def main():
    setting.start()
    schedule, mine, is_first, is_last, place = build(sys.argv[1])
    parameters = [p for m in mine for p in m.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    order = torch.Generator().manual_seed(place)
    x, y = setting.data(64)
    losses = []
    for _ in range(16):
        pace.work()
        chosen = torch.randint(len(x), (BATCH,), generator=order)
        optimizer.zero_grad()
        found = []
        inputs, target = x[chosen].to(setting.DEVICE), y[chosen].to(setting.DEVICE)
        schedule.step(*([inputs] if is_first else []), **({"target": target, "losses": found} if is_last else {}))
        optimizer.step()
        scheduler.step()
        losses.append(sum(loss.item() for loss in found) / MICRO_BATCHES)
    ending.write(
        losses, optimizer=optimizer, scheduler=scheduler, order=order, **{f"part{i}": m for i, m in enumerate(mine)}
    )
    setting.end()


if __name__ == "__main__":
    main()
