"""A data set that the script changes while it trains. Usage: changing_data.py OUT KIND

`curriculum`: samples are exchanged between epochs, by how far training is; `workers`: the same, read by processes of the loader;
`strength`: an augmentation that is turned up, in an object below the data set; `within`: samples of a data set within another
one; `labels`: labels are smoothed where the model errs; `variable`: an iterator in a variable, begun anew where it ends;
`processes`: the same with processes of the loader; `records`: a long list of objects, in another order in each epoch; `thread`: a
thread of its own fetches the samples that come next; `parts`: rows are shuffled in place, and batches are parts of their array;
`opened`: a reader is made at the first draw, with an entry that is taken out of the script's configuration.
"""

import random
import sys
import threading

import common
import final_state
import numpy
import pace
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset

EPOCHS, STEPS_OF_ONE = 4, 5
WITH_WORKERS, IN_A_VARIABLE = ("workers", "processes"), ("variable", "processes")


class Noise:
    def __init__(self):
        self.strength = 0.1

    def __call__(self, x):
        return x + self.strength * torch.cos(7 * x)


class Samples(Dataset):
    def __init__(self, x, y):
        self.rows, self.left = list(range(20)), list(range(20, len(x)))
        self.x, self.y, self.noise = x, y, Noise()
        self.weights = [torch.ones(()) for _ in x]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, place):
        row = self.rows[place]
        return self.noise(self.x[row]), self.y[row] * self.weights[row]

    def exchange(self):
        """The first samples leave, others come: the length is as it was."""
        taken = self.rows[:4]
        del self.rows[:4]
        self.rows.extend(self.left[:4])
        self.left = self.left[4:] + taken

    def start(self):
        self.turn, self.fetched = threading.Event(), threading.Event()
        self.coming, self.thread = [], threading.Thread(target=self.fetch, daemon=True)
        self.thread.start()

    def fetch(self):
        while True:
            self.coming = self.left[:4]
            self.fetched.set()
            self.turn.wait()
            self.turn.clear()

    def take_what_was_fetched(self):
        self.fetched.wait()
        self.fetched.clear()
        taken = self.rows[:4]
        self.rows = self.rows[4:] + self.coming
        self.left = self.left[4:] + taken
        self.turn.set()

    def smooth(self, loss):
        for row in self.rows[::3]:
            self.weights[row] = self.weights[row] * (1 - min(loss, 1.0) / 10)


class Reader:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, x):
        return self.scale * x


class Opened(Samples):
    def __init__(self, x, y, configuration):
        super().__init__(x, y)
        self.configuration, self.reader = configuration, None

    def __getitem__(self, place):
        if self.reader is None:
            self.reader = Reader(self.configuration.pop("scale"))
        x, y = super().__getitem__(place)
        return self.reader(x), y


class Parts(Samples):
    """Whole batches by itself."""

    def __init__(self, x, y):
        super().__init__(x, y)
        self.shuffler = numpy.random.default_rng(3)
        self.rows = numpy.arange(20)
        self.exchange()

    def __len__(self):
        return len(self.parts)

    def __getitem__(self, place):
        rows = torch.from_numpy(self.parts[place][0])
        return self.noise(self.x[rows]), self.y[rows]

    def exchange(self):
        self.shuffler.shuffle(self.rows)
        parts = [(self.rows[start : start + 4], start) for start in range(0, 20, 4)]
        self.shuffler.shuffle(parts)
        self.parts = parts


class Job:
    def __init__(self, kind):
        self.rank, ranks = common.start()
        x, y = common.data(40 * ranks)
        whole = kind == "parts"
        self.configuration, own = {"scale": 0.5}, (x[self.rank :: ranks], y[self.rank :: ranks])
        self.samples = Opened(*own, self.configuration) if kind == "opened" else (Parts if whole else Samples)(*own)
        data = ConcatDataset([self.samples]) if kind == "within" else self.samples
        workers = 1 if kind in WITH_WORKERS else 0
        self.loader = DataLoader(data, batch_size=None if whole else 4, shuffle=True, num_workers=workers)
        self.model = common.model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.losses = []

    def step(self, x, y):
        pace.work()
        loss = common.loss_of(self.model, x, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def change(self, kind):
        if kind == "strength":
            self.samples.noise.strength *= 1.5
        elif kind == "labels":
            self.samples.smooth(self.losses[-1])
        elif kind == "opened":
            self.configuration["epochs"] = self.configuration.get("epochs", 0) + 1
        elif kind == "thread":
            self.samples.take_what_was_fetched()
        else:
            self.samples.exchange()


def in_epochs(job, kind):
    for _ in range(EPOCHS):
        for x, y in job.loader:
            job.step(x, y)
        job.change(kind)


def by_records(job, kind):
    records = [{"row": row % len(job.samples)} for row in range(5000)]
    for _ in range(EPOCHS):
        random.shuffle(records)
        for step in range(STEPS_OF_ONE):
            drawn = [job.samples[record["row"]] for record in records[4 * step : 4 * step + 4]]
            job.step(*(torch.stack(column) for column in zip(*drawn)))


def from_a_variable(job, kind):
    iterator = iter(job.loader)
    for _ in range(EPOCHS * STEPS_OF_ONE):
        try:
            batch = next(iterator)
        except StopIteration:
            job.change(kind)
            iterator = iter(job.loader)
            batch = next(iterator)
        job.step(*batch)


def main():
    kind = sys.argv[2]
    job = Job(kind)
    if kind == "thread":
        job.samples.start()
    way = by_records if kind == "records" else from_a_variable if kind in IN_A_VARIABLE else in_epochs
    way(job, kind)
    kept = [
        [*map(int, job.samples.rows)],
        job.samples.left,
        job.samples.noise.strength,
        [w.item() for w in job.samples.weights],
    ]
    final_state.write(sys.argv[1], job.losses, job.model, job.optimizer, kept=kept)
    common.end()


if __name__ == "__main__":
    main()
