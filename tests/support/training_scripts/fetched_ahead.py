"""A thread fetches batches ahead into a queue. Usage: fetched_ahead.py OUT HOW

HOW: `object` (of set-up, asked by a method), `loader` (a data loader whose iterator is a thread), `generator` (made in each epoch),
`late` (an iterator of set-up that begins its thread when it is first asked), `float` (numbers that the thread alone computes),
`file` (rows that the thread reads from a file). `asked`: the thread is told by training which batch to fetch. `polled`: training
looks whether there is one.
"""

import sys
import tempfile
import threading
import time
from queue import Queue

import common
import final_state
import numpy
import pace
import torch
from torch.utils.data import DataLoader, TensorDataset

ROWS, STEPS = 96, 20
"""So many that a thread is not through before it is known what it changes."""


class Ahead:
    def __init__(self, data, orders=None):
        self.data, self.chance, self.fetched, self.taken = data, numpy.random.RandomState(3), 0, 0
        self.queue, self.orders = Queue(2), orders
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self):
        while True:
            rows = self.chance.randint(0, ROWS, 8) if self.orders is None else self.orders.get()
            self.fetched += 1
            self.queue.put([column[rows] for column in self.data])

    def batch(self):
        self.taken += 1
        return self.queue.get()


class Asked(Ahead):
    def __init__(self, data):
        super().__init__(data, Queue())

    def batch(self):
        self.orders.put(list(range(self.taken * 8, self.taken * 8 + 8)))
        return super().batch()


class FromFile(Ahead):
    def __init__(self, data):
        self.file = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it stays open
        self.file.write("".join(f"{(7 * line) % ROWS}\n" for line in range(8 * 64)))
        self.file.seek(0)
        super().__init__(data)

    def work(self):
        while True:
            rows = [int(self.file.readline()) for _ in range(8)]
            self.queue.put([column[rows] for column in self.data])


class Polled(Ahead):
    def batch(self):
        while self.queue.empty():
            time.sleep(0.001)
        return self.queue.get()


class Late:
    def __init__(self, data):
        self.source, self.queue, self.thread, self.last = Source(data), Queue(2), None, None

    def __iter__(self):
        return self

    def fill(self):
        while True:
            self.queue.put(next(self.source))

    def __next__(self):
        if self.thread is None:
            self.thread = threading.Thread(target=self.fill, daemon=True)
            self.thread.start()
        batch, self.last = self.queue.get()
        return batch


class Source:
    def __init__(self, data):
        self.data, self.at = data, 0

    def __next__(self):
        self.at = (self.at + 8) % ROWS
        return [column[self.at : self.at + 8] for column in self.data], self.at


class Numbers(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.queue, self.state = Queue(2), 0.0
        self.start()

    def run(self):
        for step in range(64):
            self.state = self.state * 0.9 + step
            self.queue.put(self.state)


class Background(threading.Thread):
    def __init__(self, source):
        super().__init__(daemon=True)
        self.queue, self.source = Queue(2), source
        self.start()

    def run(self):
        for batch in self.source:
            self.queue.put(batch)
        self.queue.put(None)

    def __iter__(self):
        return self

    def __next__(self):
        batch = self.queue.get()
        if batch is None:
            raise StopIteration
        return batch


class Loader(DataLoader):
    """Keeps one batch ahead of training, and others in a queue."""

    def __iter__(self):
        self.ahead = Background(super().__iter__())
        self.batch = next(self.ahead)
        return self

    def __next__(self):
        batch = self.batch
        if batch is None:
            raise StopIteration
        self.batch = next(self.ahead, None)
        return batch


def threaded(source):
    queue, end = Queue(2), object()

    def fill():
        for batch in source:
            queue.put(batch)
        queue.put(end)

    threading.Thread(target=fill, daemon=True).start()
    yield from iter(queue.get, end)


class Epochs:
    def __init__(self, data):
        self.data, self.epoch, self.yielded = data, 0, 0

    def batches(self):
        order = numpy.random.default_rng(self.epoch).permutation(ROWS)
        for at in range(0, ROWS, 8):
            yield [column[order[at : at + 8]] for column in self.data]

    def __iter__(self):
        for batch in threaded(self.batches()):
            self.yielded += 1
            yield batch


def main():
    out, how = sys.argv[1:]
    common.start()
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = common.data(ROWS)
    losses, steps = [], 0
    ahead = {"object": Ahead, "asked": Asked, "file": FromFile, "polled": Polled}.get(how, lambda _: None)(data)
    late = Late(data) if how == "late" else None
    numbers = Numbers() if how == "float" else None
    loader = Loader(TensorDataset(*data), batch_size=8, shuffle=True) if how == "loader" else Epochs(data)

    def train(x, y):
        nonlocal steps
        steps += 1
        pace.hold(steps)
        pace.work()
        optimizer.zero_grad()
        loss = common.loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    if how in ("loader", "generator"):
        for epoch in range(2):
            loader.epoch = epoch
            for x, y in loader:
                train(x, y)
    elif how == "float":
        for _ in range(STEPS):
            train(data[0][:8] + numbers.queue.get() / 100, data[1][:8])
    else:
        for _ in range(STEPS):
            train(*(ahead.batch() if ahead is not None else next(late)))
    final_state.write(out, losses, model, optimizer)
    common.end()


main()
