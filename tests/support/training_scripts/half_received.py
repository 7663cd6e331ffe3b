"""Rank 1 sends a large message in each step; it knows nothing of torchrelay. Usage: half_received.py OUT

With STRUCK, rank 1 is killed in step 5 when the first bytes have arrived at rank 0, once.
"""

import os
import signal
import sys
import threading

import common
import final_state
import torch
import torch.distributed as dist

FLOATS = 48 << 20
STEPS = 8


def kill_at_first_bytes(message, pid):
    try:
        os.close(os.open(os.environ["STRUCK"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    while message[0] == 0:
        pass
    os.kill(pid, signal.SIGKILL)


def main():
    rank, _ = common.start()
    pid = torch.tensor([os.getpid()])
    dist.broadcast(pid, 1)
    model = common.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    x, y = common.data(64)
    losses = []
    for step in range(1, STEPS + 1):
        message = torch.full((FLOATS,), float(step)) if rank == 1 else torch.zeros(FLOATS)
        if rank == 0 and step == 5 and "STRUCK" in os.environ:
            threading.Thread(target=kill_at_first_bytes, args=(message, pid.item())).start()
        dist.broadcast(message, 1)
        chosen = torch.randint(len(x), (4,))
        optimizer.zero_grad()
        loss = common.loss_of(model, x[chosen], y[chosen]) * message[-1]
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    final_state.write(sys.argv[1], losses, model, optimizer)
    common.end()


if __name__ == "__main__":
    main()
