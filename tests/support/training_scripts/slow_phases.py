"""One rank keeps the others waiting, for good reasons, and longer than a hang may last. Usage: slow_phases.py OUT"""

import hashlib
import sys
import threading
import time

import common
import final_state
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

SLOW_S = 7.0
SLOW_RANK = 1


class Storage(Dataset):
    """Stands still for a while, as file servers do."""

    def __init__(self):
        self.x, self.y = common.data(120)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, place):
        if place == 112 and dist.get_rank() == SLOW_RANK:
            time.sleep(SLOW_S)
        return self.x[place], self.y[place]


class Augmented(Dataset):
    """Its worker process computes for a while, within a step."""

    def __init__(self, is_slow):
        self.is_slow = is_slow

    def __len__(self):
        return 1

    def __getitem__(self, place):
        return torch.tensor(float(evaluate() if self.is_slow else True))


def evaluate():
    """Plain Python, without a batch or a communication to be seen by."""
    end, total, count = time.monotonic() + SLOW_S, 0.0, 0
    while time.monotonic() < end:
        count += 1
        total += 1.0 / count
    return total > 1.0


def compress():
    """One call into C."""
    rounds, took_s = 20_000, 0.0
    while took_s < SLOW_S / 4:
        start = time.monotonic()
        hashlib.pbkdf2_hmac("sha512", b"model", b"salt", rounds)
        took_s = time.monotonic() - start
        rounds *= 2
    hashlib.pbkdf2_hmac("sha512", b"model", b"salt", rounds)


def upload():
    """Somebody else works; this rank asks from time to time."""
    done = threading.Event()
    timer = threading.Timer(SLOW_S, done.set)
    timer.start()
    while not done.is_set():
        time.sleep(0.1)
    timer.join()


def main():
    common.start()
    model = common.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses, augmented = [], DataLoader(Augmented(dist.get_rank() == SLOW_RANK), num_workers=1)
    work = {11: evaluate, 17: upload, 23: compress}
    for step, (x, y) in enumerate(DataLoader(Storage(), batch_size=4)):
        if step == 6:
            x = x * next(iter(augmented))
        loss = common.loss_of(model, x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step in work:
            if dist.get_rank() == SLOW_RANK:
                work[step]()
            dist.barrier()
    final_state.write(sys.argv[1], losses, model, optimizer)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
