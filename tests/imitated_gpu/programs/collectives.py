"""Runs every collective and reports the results: DEVICE is cuda (nccl) or cpu (gloo), BOUND if ranks name their device."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from imitated_gpu import counts
from imitated_gpu.ranks import report
from torch import Tensor
from torch.distributed import ReduceOp

DEVICE = os.environ["DEVICE"]
RANK = int(os.environ["RANK"])
SIZE = int(os.environ["WORLD_SIZE"])
LARGE = 700_001  # more than one round, and no round number


def numbers(count: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Whole numbers: their sums are exact, so the order of summation does not matter."""
    drawn = torch.randint(-8, 9, (count,), generator=torch.Generator().manual_seed(1000 * seed + RANK))
    return drawn.to(dtype).to(DEVICE)


def digest(*tensors: Tensor) -> list[float]:
    weighted = [(t.double().cpu() * torch.arange(1, t.numel() + 1) % 1009).sum().item() for t in tensors]
    return [*weighted, *(float(t[0]) for t in tensors)]


def all_reduce(op: ReduceOp.RedOpType, dtype: torch.dtype) -> Tensor:
    tensor = numbers(LARGE if dtype is torch.float32 else 1001, dtype)
    if dtype is torch.uint8:
        tensor %= 4
    dist.all_reduce(tensor, op)
    return tensor


def averaged() -> Tensor:
    tensor = numbers(1001) * SIZE
    if DEVICE == "cuda":
        dist.all_reduce(tensor, ReduceOp.AVG)
    else:
        dist.all_reduce(tensor)
        tensor /= SIZE
    return tensor


def scaled() -> Tensor:
    tensor = numbers(1001)
    if DEVICE == "cuda":
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
    else:
        tensor *= 0.5
        dist.all_reduce(tensor)
    return tensor


def reduce() -> Tensor:
    tensor = numbers(LARGE)
    dist.reduce(tensor, 1)
    return tensor if RANK == 1 else torch.zeros(1)


def broadcast() -> Tensor:
    tensor = numbers(LARGE)
    dist.broadcast(tensor, SIZE - 1)
    return tensor


def all_gather() -> Tensor:
    gathered = torch.empty(SIZE * LARGE, device=DEVICE)
    dist.all_gather_single(gathered, numbers(LARGE))
    return gathered


def all_gather_uneven() -> list[Tensor]:
    own = numbers(100 * (RANK + 1))
    parts = [torch.empty(100 * (rank + 1), device=DEVICE) for rank in range(SIZE)]
    (dist.all_gather if DEVICE == "cuda" else dist.all_gather_object)(parts, own)  # gloo gathers equal sizes only
    return parts


def reduce_scatter() -> Tensor:
    part = torch.empty(LARGE, device=DEVICE)
    dist.reduce_scatter_single(part, numbers(SIZE * LARGE))
    return part


def all_to_all() -> Tensor:
    received = torch.empty(SIZE * 100_003, device=DEVICE)
    dist.all_to_all_single(received, numbers(SIZE * 100_003))
    return received


def all_to_all_uneven() -> Tensor:
    received = torch.empty(sum(1000 * RANK + 10 * other for other in range(SIZE)), device=DEVICE)
    sent = [1000 * other + 10 * RANK for other in range(SIZE)]
    dist.all_to_all_single(received, numbers(sum(sent)), [1000 * RANK + 10 * other for other in range(SIZE)], sent)
    return received


def sent_around() -> Tensor:
    received = torch.empty(LARGE, device=DEVICE)
    send = dist.P2POp(dist.isend, numbers(LARGE), (RANK + 1) % SIZE)
    receive = dist.P2POp(dist.irecv, received, (RANK - 1) % SIZE)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()
    return received


def sent_twice_each_way() -> list[Tensor]:
    """Several messages to the same peer at once arrive in the order of posting."""
    received = [torch.empty(count, device=DEVICE) for count in (90_000, 7)]
    operations = []
    for seed, into in enumerate(received):
        operations.append(dist.P2POp(dist.isend, numbers(into.numel(), seed=seed), (RANK + 1) % SIZE))
        operations.append(dist.P2POp(dist.irecv, into, (RANK - 1) % SIZE))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return received


def passed_on() -> Tensor:
    """A plain send and receive, one rank after the other."""
    tensor = numbers(1001)
    if RANK > 0:
        dist.recv(tensor, RANK - 1)
        tensor += RANK
    if RANK < SIZE - 1:
        dist.send(tensor, RANK + 1)
    return tensor


def gathered_and_scattered() -> list[Tensor]:
    parts = [torch.empty(1001, device=DEVICE) for _ in range(SIZE)]
    dist.gather(numbers(1001), parts if RANK == 0 else None, 0)
    own = torch.empty(1001, device=DEVICE)
    dist.scatter(own, [part + 1 for part in parts] if RANK == 0 else None, 0)
    return [own]


def objects() -> Tensor:
    said: list[object] = [None] * SIZE
    dist.all_gather_object(said, {"rank": RANK})
    assert said == [{"rank": rank} for rank in range(SIZE)]
    return torch.ones(1)


def in_subgroup() -> Tensor:
    groups = [dist.new_group(ranks) for ranks in ([0], list(range(1, SIZE)))]
    tensor = numbers(1001)
    dist.all_reduce(tensor, group=groups[RANK > 0])
    return tensor


def cases() -> dict[str, Callable[[], Tensor | list[Tensor]]]:
    made: dict[str, Callable[[], Tensor | list[Tensor]]] = {
        f"all_reduce {dtype}": lambda dtype=dtype: all_reduce(ReduceOp.SUM, dtype)
        for dtype in (
            torch.float32,
            torch.float64,
            torch.float16,
            torch.bfloat16,
            torch.int32,
            torch.int64,
            torch.uint8,
        )
    }
    for op in ReduceOp.MAX, ReduceOp.MIN, ReduceOp.PRODUCT:
        made[f"all_reduce {op}"] = lambda op=op: all_reduce(op, torch.float64)
    plain = (averaged, scaled, reduce, broadcast, all_gather, all_gather_uneven, reduce_scatter, all_to_all)
    plain += (
        all_to_all_uneven,
        sent_around,
        sent_twice_each_way,
        passed_on,
        gathered_and_scattered,
        objects,
        in_subgroup,
    )
    return made | {function.__name__: function for function in plain}


def main() -> None:
    if DEVICE == "cuda":
        torch.cuda.set_device(RANK)
    # Bound to a device, torch connects eagerly and splits communicators for subgroups.
    bound = torch.device("cuda", RANK) if os.environ.get("BOUND") else None
    dist.init_process_group({"cuda": "nccl", "cpu": "gloo"}[DEVICE], device_id=bound)
    results = {}
    for name, function in cases().items():
        result = function()
        results[name] = digest(*(result if isinstance(result, list) else [result]))
    dist.barrier()
    dist.destroy_process_group()
    counted = counts()
    report(
        results=results,
        communicators=counted.communicators,
        skipped=counted.skipped_kernels,
        split=counted.split_communicators,
    )


main()
