"""A generator of set-up reads on in an object that no other process can be given. Usage: led_generator.py OUT HOW

HOW: `rows` (a cursor of a database); `progress` (the same, and what it yields depends on how far training is).
"""

import sqlite3
import sys

import common
import final_state
import pace
import torch

ROWS, STEPS = 96, 16
losses = []
asked = {"rows": 0}


def rows(data, how):
    connection = sqlite3.connect(":memory:")
    connection.execute("create table numbers (number integer)")
    connection.executemany("insert into numbers values (?)", [(step * 37 % ROWS,) for step in range(8 * STEPS)])
    cursor = connection.execute("select number from numbers")
    taken = []
    for (number,) in cursor:
        taken.append(number)
        asked["rows"] += 1
        if len(taken) == 8:
            scale = 1 + len(losses) if how == "progress" else 1
            yield data[0][taken] / scale, data[1][taken]
            taken = []


def main():
    out, how = sys.argv[1:]
    common.start()
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    source = rows(common.data(ROWS), how)
    for step in range(STEPS):
        pace.hold(step + 1)
        pace.work()
        x, y = next(source)
        optimizer.zero_grad()
        loss = common.loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    final_state.write(out, losses, model, optimizer, others=[asked])
    common.end()


main()
