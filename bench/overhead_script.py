"""What step_overhead.py measures: a training loop that notes how long each of its steps takes.

Knows nothing of torchrelay unless told to with --breakdown or --in-turns.
"""

import argparse
import hashlib
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from train_gpt import GPT, Windows, make_text


def own_bytes() -> int:
    """Return the resident memory of this process, without mapped files."""
    with open("/proc/self/status") as file:
        rows = dict(line.split(":", 1) for line in file)
    return sum(int(rows[row].split()[0]) << 10 for row in ("RssAnon", "RssShmem"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--width", type=int, default=128, help="of the model")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--memory", type=Path, help="where rank 0 says in the end how many bytes it keeps for itself")
    parser.add_argument(
        "--device-rounds",
        type=int,
        default=0,
        help="work beside the model in each step that touches no memory to speak of",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="a line per step: wall and processor seconds of rank 0, protected or not",
    )
    parser.add_argument("--breakdown", type=Path, help="under torchrelay: where the shim spends its time, as JSON")
    parser.add_argument(
        "--in-turns", type=int, default=0, help="under torchrelay: protection is off and on again after so many steps"
    )
    parser.add_argument(
        "--registries", type=int, default=0, help="entries of each registry that is kept at module level"
    )
    args = parser.parse_args()
    history = []
    if args.registries:
        os.environ["BENCH_REGISTRIES"] = str(args.registries)
        import registries

        history = registries.HISTORY
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    window = 64
    dataset = Windows(make_text(args.steps * args.batch * world_size * window + 1, 0), window)
    loader = DataLoader(dataset, batch_size=args.batch, sampler=DistributedSampler(dataset), drop_last=True)
    model = DistributedDataParallel(
        GPT(len(dataset.alphabet), window, args.width, args.layers, 4, 0.1), bucket_cap_mb=1
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    out = open(args.out, "w") if rank == 0 else None  # noqa: SIM115 - open as long as it trains
    if args.breakdown is not None:
        from breakdown import attach, write
    if args.in_turns:
        from in_turns import turn
    protected = True
    start, start_cpu = time.perf_counter(), time.process_time()
    for x, y in loader:
        if args.breakdown is not None:
            attach()
        loss = model(x, y)
        optimizer.zero_grad()
        loss.backward()
        if args.device_rounds:
            hashlib.pbkdf2_hmac("sha256", b"device", b"", args.device_rounds)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        history.append(loss.item())
        now, now_cpu = time.perf_counter(), time.process_time()
        if out is not None:
            out.write(f"{now - start:.9f} {now_cpu - start_cpu:.9f} {protected:d}\n")
        if args.in_turns:
            protected = turn(args.in_turns)
        start, start_cpu = time.perf_counter(), time.process_time()
    if out is not None:
        out.close()
        if args.breakdown is not None:
            write(args.breakdown)
        if args.memory is not None:
            args.memory.write_text(str(own_bytes()))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
