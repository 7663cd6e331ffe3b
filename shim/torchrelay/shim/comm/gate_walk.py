"""Plays the gates of many ranks in one process, through a real store: `python -m torchrelay.shim.comm.gate_walk RANKS`.

For `torchrelay bench scaling`. Each rank is a thread. All of them share the processors, so what a rank's own thread takes is told
beside what passes. Prints one line of JSON.
"""

from __future__ import annotations

import json
import secrets
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from torchrelay.protocol.names import GATE_SECRET_BYTES
from torchrelay.shim.comm import gate
from torchrelay.shim.comm.gate_links import GateListener
from torchrelay.shim.comm.generations.generation_store import CONNECT_TIMEOUT, join_store, serve_store

HOST = "127.0.0.1"
GATES = 30
GETS = 100


def walk(ranks: int) -> dict[str, float]:
    """Medians of seconds. Raises RuntimeError where the ranks do not meet."""
    store, port = serve_store()
    secret = secrets.token_bytes(GATE_SECRET_BYTES)
    start = threading.Barrier(ranks)

    def rank_of(rank: int) -> tuple[float, float, float, float, float]:
        mine = join_store(HOST, port)
        listener = GateListener(HOST, secret, 0, rank)
        start.wait()
        end_s = time.monotonic() + CONNECT_TIMEOUT.total_seconds()
        began_s = time.monotonic()
        began_cpu_s = time.thread_time()
        met = gate.connect(rank, ranks, mine, HOST, listener, 0, secret, lambda: end_s - time.monotonic())
        connect_s = time.monotonic() - began_s
        connect_cpu_s = time.thread_time() - began_cpu_s
        met.wait(0, 0)
        began_s = time.monotonic()
        began_cpu_s = time.thread_time()
        for number in range(1, GATES + 1):
            met.wait(0, number)
        took_s = time.monotonic() - began_s
        took_cpu_s = time.thread_time() - began_cpu_s
        start.wait()  # whoever closes first would break the others' last gate
        met.close()
        began_s = time.monotonic()
        for _ in range(GETS):
            mine.get(gate.key_of(rank))
        return connect_s, connect_cpu_s, took_s / GATES, took_cpu_s / GATES, time.monotonic() - began_s

    with ThreadPoolExecutor(ranks) as pool:
        connect_s, connect_cpu_s, gate_s, gate_cpu_s, gets_s = zip(*pool.map(rank_of, range(ranks)))
    del store
    return {
        "gate_s": statistics.median(gate_s),
        "gate_cpu_s": statistics.median(gate_cpu_s),
        "connect_s": max(connect_s),
        "connect_cpu_s": statistics.median(connect_cpu_s),
        "gets_per_s": ranks * GETS / max(gets_s),
    }


if __name__ == "__main__":
    print(json.dumps(walk(int(sys.argv[1]))))
