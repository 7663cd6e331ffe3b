"""Where a test strikes a rank at a place of its step: it obeys a file of its number, which says PID PLACE KIND, once."""

import os
import threading

ORDERS = os.environ.get("ORDERS", "")


def obey(place):
    """Whoever only walks the step, to learn whether it could take the rank over, is another process than the one that is meant."""
    path = os.path.join(ORDERS, os.environ["RANK"])
    if not ORDERS or not os.path.exists(path):
        return
    with open(path, encoding="utf-8") as order:
        pid, where, kind = order.read().split()
    if (int(pid), where) == (os.getpid(), place):
        os.rename(path, f"{path}-done")
        _DO[kind]()


def _spin():
    while True:
        pass


def _deadlock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _lonely():
    from torchrelay.shim.adapters.process_groups import process_group

    process_group.receive_in_vain((int(os.environ["RANK"]) + 1) % int(os.environ["WORLD_SIZE"]))


def _partition():
    from torchrelay.shim.adapters.process_groups import tcp

    with tcp.connections() as found:
        for fd in found.values():
            tcp.drop_all(fd)


def _raise():
    raise RuntimeError("told to fail")


def _exit():
    raise SystemExit(3)


_DO = {
    "spin": _spin,
    "deadlock": _deadlock,
    "lonely": _lonely,
    "partition": _partition,
    "raise": _raise,
    "exit": _exit,
}
