"""The loop that trains goes over objects that it changes itself. Usage: members.py OUT WHO

WHO: `kept` (a variable has them, which is read after the loop), `loop` (nothing but the loop's iterator has them).
"""

import sys

import common
import final_state
import pace
import torch


class Member:
    def __init__(self, number):
        self.seen, self.number = torch.zeros(3), number


def main():
    out, who = sys.argv[1:]
    common.start()
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    if who == "kept":
        members = [Member(number) for number in range(4)]
    x, y = common.data(64)
    for member in members * 4 if who == "kept" else [Member(number) for number in range(4)] * 4:
        pace.hold(len(losses) + 1)
        pace.work()
        rows = torch.randint(len(x), (8,))
        optimizer.zero_grad()
        loss = common.loss_of(model, x[rows] + member.seen.mean(), y[rows])
        loss.backward()
        optimizer.step()
        member.seen += loss.detach()
        losses.append(loss.item())
    if who == "kept":
        losses += [member.seen.mean().item() for member in members]
    final_state.write(out, losses, model, optimizer)
    common.end()


main()
