"""ddp.py, with another process that holds the connections of rank 1 open: when that rank is killed no peer is told.

Packets of a link that is down do not arrive at its process's end either. `outlived` says that it was so. Usage: held_open.py OUT
"""

import os
import sys
import time
from pathlib import Path

import ddp
import own_sockets
import torch.distributed as dist

HELD_RANK = "1"
LONGEST_S = 180.0
connect = dist.init_process_group


def hold_open(out):
    """Until the rank's results are there, from whoever is the rank then."""
    held = own_sockets.duplicates()  # those that the process has itself are closed in a forked child
    if os.fork() > 0:
        for connection in held:
            connection.close()
        return
    os.setsid()
    parent, end_s = os.getppid(), time.monotonic() + LONGEST_S
    while not (out / f"rank-{HELD_RANK}.json").exists() and time.monotonic() < end_s:
        if os.getppid() != parent:
            (out / "outlived").touch()
        time.sleep(0.1)
    os._exit(0)


def connect_and_hold(*args, **kwargs):
    connect(*args, **kwargs)
    out = Path(sys.argv[1])
    if os.environ["RANK"] == HELD_RANK and not (out / "held").exists():
        (out / "held").touch()
        hold_open(out)


if __name__ == "__main__":
    dist.init_process_group = connect_and_hold
    ddp.main()
