"""Drops, scales and exchanges its optimizer's state, before updates and behind them. Usage: OUT"""

import sys

import common
import final_state
import pace
import torch


def main():
    common.start()
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = common.data(64)
    losses = []
    for step in range(20):
        pace.hold(step + 1)
        pace.work()
        if step % 6 == 2:
            for values in optimizer.state.values():
                values["exp_avg"].mul_(0.5)
        elif step % 6 == 4:
            for values in optimizer.state.values():
                values["exp_avg"] = values["exp_avg"] * 0.5
        elif step % 6 == 5:
            optimizer.state.clear()
        picked = torch.randint(len(x), (4,))
        optimizer.zero_grad()
        loss = common.loss_of(model, x[picked], y[picked])
        loss.backward()
        optimizer.step()
        if step % 6 == 1:
            for values in optimizer.state.values():
                values["exp_avg"].mul_(0.5)
        elif step % 6 == 3:
            for values in optimizer.state.values():
                values["exp_avg_sq"] = values["exp_avg_sq"] * 0.5
        losses.append(loss.item())
    final_state.write(sys.argv[1], losses, model, optimizer)
    common.end()


main()
