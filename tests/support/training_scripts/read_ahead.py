"""Batches that others read ahead, behind a generator of set-up. Usage: read_ahead.py OUT KIND

pool: an iterator gives its readings to a pool of threads, and reads rows from an object of C. process: another process fills a
queue, and is told nothing. counted: the same, behind an iterator of a class of the script's, which counts. shared: two generators
draw from it. answered: it is told what training has come to.
"""

import contextlib
import multiprocessing
import sqlite3
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from queue import Empty

import common
import final_state
import pace
import torch
import torch.distributed as dist

STEPS = 16


def batch_of(number, rank):
    of_batch = torch.Generator().manual_seed(7 * number + rank)
    return torch.randn(6, 8, generator=of_batch).tolist()


class Ahead:
    def __init__(self, rank):
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        connection.execute("create table numbers (number integer)")
        connection.executemany("insert into numbers values (?)", [(number,) for number in range(100)])
        self.rows = connection.execute("select number from numbers order by number")
        self.rank, self.pool, self.waiting, self.given = rank, ThreadPoolExecutor(1), deque(), 0

    def __iter__(self):
        return self

    def read(self):
        return batch_of(next(self.rows)[0], self.rank)

    def __next__(self):
        while len(self.waiting) < 4:
            self.waiting.append(self.pool.submit(self.read))
        self.given += 1
        return self.waiting.popleft().result()


class Loader:
    def __init__(self):
        self.iterator = None

    def __iter__(self):
        self.iterator = Ahead(dist.get_rank())
        return self.iterator


def fill(queue, told, rank):
    for number in range(100):
        more = 0 if told is None else told.get()
        queue.put(batch_of(number + more, rank))


def taken(process, queue):
    while process.exitcode is None:
        with contextlib.suppress(Empty):
            yield queue.get(timeout=0.1)


def batches_of(loader, seen):
    for batch in loader:
        seen.append(len(batch))
        yield batch


class Counted:
    def __init__(self, batches):
        self.batches = batches
        self.given = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.given += 1
        return [[*row[:-1], self.given / 10] for row in next(self.batches)]


def main():
    out, kind = sys.argv[1:]
    common.start()
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, seen = [], []
    told = multiprocessing.Queue() if kind == "answered" else None
    process = None
    loader = Loader()
    if kind != "pool":
        queue = multiprocessing.Queue(4)
        process = multiprocessing.Process(target=fill, args=(queue, told, dist.get_rank()), daemon=True)
        process.start()
        loader = taken(process, queue)
    batches = batches_of(loader, seen)
    others = batches_of(loader, seen) if kind == "shared" else None
    if kind == "counted":
        batches = loader = Counted(batches)
    for step in range(STEPS):
        if told is not None:
            told.put(step % 3)
        states = torch.tensor(next(batches if others is None or step % 3 else others))
        pace.work()
        optimizer.zero_grad()
        loss = common.loss_of(model, states, states.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if process is not None:
        process.terminate()
    final_state.write(
        out,
        losses,
        model,
        optimizer,
        others=[seen, getattr(loader, "given", 0), getattr(getattr(loader, "iterator", None), "given", 0)],
    )
    common.end()


main()
