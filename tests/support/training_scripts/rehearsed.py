"""Training that waits, behind its fifth step, until the events of its job have what AWAIT says: of a rehearsal.

`python rehearsed.py OUT [fails|slow|starts|writes]`: what is wrong with set-up in a process that rehearses.
`python rehearsed.py OUT database`: set-up that cannot be done a second time, as C code sees what the first time has made.
`python rehearsed.py OUT breaks`: what is wrong with it in one that takes over a rank, and in none before.
"""

import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import final_state
import torch
from common import data, end, loss_of, model, start

STEPS, AWAITED_AT, AWAIT_S = 12, 5, 60.0
IN_REHEARSAL = os.environ.get("TORCHRELAY_REHEARSAL") == "1"


class Meter:
    def __init__(self):
        self.seen = []


def set_up(how):
    if how == "writes":
        for name in ("log.txt", f"log-{os.getpid()}.txt"):
            with open(name, "w") as log:
                log.write("rehearsed" if IN_REHEARSAL else "trained")
        os.makedirs(f"folder-{os.getpid()}")
    elif how == "starts":
        Path("marker").touch()
        if IN_REHEARSAL:
            Path("marker").unlink()
        subprocess.run(["touch", f"started-{os.getpid()}"], check=True)
    elif how == "database" and torch.distributed.get_rank() == 0:
        with sqlite3.connect("runs.db") as database:
            database.execute("CREATE TABLE losses (step INTEGER, loss REAL)")
    elif IN_REHEARSAL and how == "fails":
        raise RuntimeError("this machine lacks something")
    elif how == "breaks" and has_migrated():
        raise RuntimeError("this machine has changed")
    elif IN_REHEARSAL and how == "slow":
        time.sleep(AWAIT_S)


def has_migrated():
    """Ask another program: what set-up itself reads from a file, a new process reads as it was."""
    return subprocess.run(["grep", "-q", '"migration_started"', "events.jsonl"], check=False).returncode == 0


def wait_for(text):
    """Where the job has events: the same command under torchrun has none."""
    events, until_s = Path("events.jsonl"), time.monotonic() + AWAIT_S
    while text and text not in events.read_text() and time.monotonic() < until_s:
        time.sleep(0.05)


def main():
    how = sys.argv[2] if len(sys.argv) > 2 else ""
    start()
    set_up(how)
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    x, y = data(4 * STEPS)
    meter, losses = Meter(), []
    for step in range(STEPS):
        if step == AWAITED_AT:
            wait_for(os.environ.get("AWAIT", ""))
        loss = loss_of(net, x[step * 4 : step * 4 + 4], y[step * 4 : step * 4 + 4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        meter.seen.append(step)
    final_state.write(sys.argv[1], losses, net.module, optimizer)
    end()


main()
