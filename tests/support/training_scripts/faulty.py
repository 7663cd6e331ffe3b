"""Data parallel training on a device that computes wrongly once, if a test wants it; it knows nothing of torchrelay.

Usage: faulty.py OUT [STEPS]. WRONG=WHERE:RANK:STEP makes a number wrong in that step: `loss` (NaN), `gradient` (a bit
of one gradient, after the reduction), `parameter` (a bit of one, after the update). With WRONG_ONCE, a file, once only.
"""

import os
import sys

import common
import final_state
import numpy
import pace
import torch

EXPONENT_BIT = 30


def wrong(where, step):
    if os.environ.get("WRONG") != f"{where}:{os.environ['RANK']}:{step}":
        return False
    if "WRONG_ONCE" in os.environ:
        try:
            os.close(os.open(os.environ["WRONG_ONCE"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
    return True


def flip(tensor, bit):
    """Past torch, as a device would."""
    tensor.detach().numpy().view(numpy.int32).reshape(-1)[0] ^= 1 << bit


def main():
    out, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 20
    common.start()
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = common.data(64)
    losses = []
    for step in range(1, steps + 1):
        pace.work()
        chosen = torch.randint(len(x), (4,))
        optimizer.zero_grad()
        loss = common.loss_of(model, x[chosen], y[chosen])
        if wrong("loss", step):
            loss = loss * float("nan")
        loss.backward()
        first = next(model.parameters())
        if wrong("gradient", step):
            flip(first.grad, EXPONENT_BIT)
        optimizer.step()
        with open(os.path.join(out, f"updates-{os.environ['RANK']}"), "w") as f:
            f.write(str(step))
        if wrong("parameter", step):
            flip(first, 3)
        losses.append(loss.item())
    final_state.write(out, losses, model, optimizer, step=step)
    common.end()


if __name__ == "__main__":
    main()
