"""Ranks that send each other messages: in set-up, in each step, and with `late` after its update. Usage: messages.py OUT [late]"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist


def around(rank, world_size, tensor):
    """What the rank before this one has."""
    got = torch.empty_like(tensor)
    works = [dist.isend(tensor, (rank + 1) % world_size), dist.irecv(got, (rank - 1) % world_size)]
    for work in works:
        work.wait()
    return got


def main():
    out, late = sys.argv[1], "late" in sys.argv
    rank, world_size = common.start()
    chosen = [None]
    scale = torch.zeros(1)
    if rank == 0:
        for other in range(1, world_size):
            dist.send_object_list([{"rate": 0.02}], other)
            dist.send(torch.rand(1), other)
    else:
        dist.recv_object_list(chosen, 0)
        dist.recv(scale, 0)
    frozen = tuple((chosen[0] or {}).items())
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=dict(frozen).get("rate", 0.02))
    x, y = common.data(64)
    y = y + scale
    losses, kept = [], []
    for step in range(16):
        pace.hold(step + 1)
        pace.work()
        batch = torch.randint(len(x), (4,))
        loss = common.loss_of(model, x[batch], y[batch])
        theirs = around(rank, world_size, loss.detach().reshape(1))
        optimizer.zero_grad()
        (loss * (1 + theirs.item())).backward()
        optimizer.step()
        losses.append(loss.item())
        if late:
            kept.append(around(rank, world_size, torch.tensor([loss.item(), float(step)])).tolist())
        kept.append(theirs.item())
    final_state.write(out, losses, model, optimizer, kept=kept, frozen=frozen)
    common.end()


if __name__ == "__main__":
    main()
