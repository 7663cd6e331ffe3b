"""Set-up starts processes of its own, which it speaks to by sockets with names. Usage: helpers_of_set_up.py OUT METHOD

METHOD: the way in which multiprocessing starts them.
"""

import multiprocessing
import os
import sys
import tempfile

import common
import final_state
import pace
import torch

STEPS = 14


def main():
    out, method = sys.argv[1:]
    multiprocessing.set_start_method(method)
    rank, _ = common.start()
    with multiprocessing.Manager() as manager:
        told = manager.dict(width=8)
        width = told["width"]
    own = os.path.basename(tempfile.mkdtemp(prefix="own-"))
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    of_rank = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(6, width, generator=of_rank)
        pace.work()
        optimizer.zero_grad()
        loss = common.loss_of(model, x, x.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert own.startswith("own-")
    final_state.write(out, losses, model, optimizer)
    common.end()


if __name__ == "__main__":
    main()
