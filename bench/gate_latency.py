"""What the proofs of the gate's messages cost: gates between processes of one machine, with and without proofs in turns.

Each rank has two gates with the same peers, one as it is on one machine and one as it is between machines, and passes them in
blocks by turns, so that a busy machine slows both alike. Told are wall and processor time of a gate, and the median ratio of
neighbouring blocks.
"""

from __future__ import annotations

import argparse
import multiprocessing
import secrets
import statistics
import time
from multiprocessing.queues import Queue

import torch.distributed as dist

from torchrelay.protocol.names import GATE_SECRET_BYTES
from torchrelay.shim.comm import gate_links
from torchrelay.shim.comm.gate import Gate, connect
from torchrelay.shim.comm.gate_links import GateListener
from torchrelay.shim.comm.generations.generation_store import join_store, serve_store

HOST = "127.0.0.1"
Times = list[tuple[float, float]]
"""Of a gate, in each block: wall and processor seconds."""


def meet(rank: int, ranks: int, port: int, secret: bytes, *, proven: bool) -> Gate:
    gate_links.is_local = lambda connection: not proven
    store = dist.PrefixStore(f"proven-{proven}", join_store(HOST, port))
    end_s = time.monotonic() + 60
    listener = GateListener(HOST, secret, 0, rank)
    return connect(rank, ranks, store, HOST, listener, 0, secret, lambda: end_s - time.monotonic())


def block(gate: Gate, first: int, gates: int) -> tuple[float, float]:
    wall_s, cpu_s = time.perf_counter(), time.thread_time()
    for number in range(first, first + gates):
        gate.wait(0, number)
    return (time.perf_counter() - wall_s) / gates, (time.thread_time() - cpu_s) / gates


def run(rank: int, a: argparse.Namespace, port: int, secret: bytes, out: Queue[tuple[Times, Times]]) -> None:
    bare, proven = (meet(rank, a.ranks, port, secret, proven=p) for p in (False, True))
    times: tuple[Times, Times] = ([], [])
    for number in range(a.blocks):
        for gate, found in zip((bare, proven), times):
            found.append(block(gate, number * a.gates, a.gates))
    if rank == 0:
        out.put(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--gates", type=int, default=200, help="in each block")
    a = parser.parse_args()
    store, port = serve_store()
    context = multiprocessing.get_context("spawn")
    out, secret = context.Queue(), secrets.token_bytes(GATE_SECRET_BYTES)
    ranks = [context.Process(target=run, args=(rank, a, port, secret, out)) for rank in range(a.ranks)]
    for process in ranks:
        process.start()
    times = out.get()
    for process in ranks:
        process.join()
    del store
    print(f"{a.ranks} ranks, {a.blocks} blocks of {a.gates} gates; microseconds of a gate, median of all blocks")
    for n, what in enumerate(("wall", "processor")):
        bare, proven = ([block[n] for block in found[1:]] for found in times)
        ratio = statistics.median(p / b for b, p in zip(bare, proven))
        medians = (1e6 * statistics.median(found) for found in (bare, proven))
        print("{:10} without {:6.1f}   with {:6.1f}   ratio {:.3f}".format(what, *medians, ratio))


if __name__ == "__main__":
    main()
