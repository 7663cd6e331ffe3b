"""What a step trains on comes from a process of the script's own. Usage: emulated.py OUT HOW

HOW: `pipe`, `queue`, `manager`; `pool` (whose processes hold nothing). Or a `fifo` that no other thread fills.
"""

import multiprocessing
import sys
from queue import Queue

import common
import final_state
import pace
import torch


def emulate(pipe, queue):
    state = 0.0
    while True:
        action = pipe.recv()
        if action is None:
            return
        state = state * 0.9 + action
        if queue is None:
            pipe.send(state)
        else:
            queue.put(state)


def shifted(number):
    return number * 0.5


def main():
    out, how = sys.argv[1:]
    common.start()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    queue = context.SimpleQueue() if how == "queue" else None
    emulator = context.Process(target=emulate, args=(theirs, queue), daemon=True)
    emulator.start()
    pool = context.Pool(1) if how == "pool" else None
    fifo = Queue() if how == "fifo" else None
    shared = context.Manager().dict(last=0.0) if how == "manager" else None
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = common.data(64)
    losses, seen = [], 0.0
    for step in range(16):
        pace.hold(step + 1)
        pace.work()
        if pool is not None:
            seen = pool.apply(shifted, (seen + step,))
        elif fifo is not None:
            fifo.put(step * 0.1)
            seen = fifo.get()
        elif shared is not None:
            shared["last"] = shared["last"] * 0.9 + step
            seen = shared["last"]
        else:
            ours.send(float(step))
            seen = ours.recv() if queue is None else queue.get()
        rows = torch.randint(len(x), (8,))
        optimizer.zero_grad()
        loss = common.loss_of(model, x[rows] + seen / 100, y[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    ours.send(None)
    if pool is not None:
        pool.terminate()
    final_state.write(out, losses, model, optimizer)
    common.end()


main()
