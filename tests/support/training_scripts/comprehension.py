"""Several updates in one iteration, in a comprehension. Usage: OUT steps|optimizers

`steps`: each computes its loss in there. `optimizers`: there, those of parts of the model are stepped.
"""

import sys

import common
import final_state
import pace
import torch


def main():
    out, kind = sys.argv[1:]
    common.start()
    model = common.model()
    x, y = common.data(64)
    parts = [list(part.parameters()) for part in model.module if list(part.parameters())]
    optimizers = [
        torch.optim.AdamW(part, lr=1e-2) for part in (parts if kind == "optimizers" else [model.parameters()])
    ]
    losses = []

    def step(picked):
        pace.work()
        loss = common.loss_of(model, x[picked], y[picked])
        model.zero_grad()
        loss.backward()
        if kind == "steps":
            optimizers[0].step()
        return loss.item()

    for epoch in range(8):
        if kind == "steps":
            losses += [step([epoch, n, n + 20]) for n in range(3)]
        else:
            losses.append(step([epoch, epoch + 20]))
            [optimizer.step() for optimizer in optimizers]
    final_state.write(out, losses, model, optimizers[0], others=[o.state_dict() for o in optimizers[1:]])
    common.end()


main()
