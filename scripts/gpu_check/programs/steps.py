"""What protection costs in a step of a rank that has the GPU to itself: blocks of steps with protection on and off, in turns.

Prints one JSON object. The device is waited for between blocks alone, so that the host may run ahead within one, as it does where a
script reads no loss.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "examples")]
import breakdown  # noqa: E402 - the folder has just been named
from in_turns import turn  # noqa: E402
from train_gpt import GPT  # noqa: E402

SYMBOLS = 64


class Networks:
    """The networks by name: each method makes the model, and a batch for it."""

    def __init__(self, quick: bool, device: torch.device) -> None:
        self.quick, self.device = quick, device

    def host(self) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        """Make a network whose step takes the host longer to queue than the device to do."""
        return self._gpt(window=64, width=256, layers=4, batch=16)

    def device_bound(self) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        """Make a network whose step takes some 100 ms."""
        return self._gpt(window=512, width=1024, layers=24, batch=32)

    def buffers(self) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        """Make a network with as many batch norms as a ResNet-50 has, with three buffers each."""
        channels, size = (8, 4) if self.quick else (128, 32)
        blocks = [
            part
            for _ in range(53)
            for part in (nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())
        ]
        images = torch.randn(4 if self.quick else 64, channels, size, size, device=self.device)
        return Squared(nn.Sequential(*blocks)), (images,)

    def _gpt(self, window: int, width: int, layers: int, batch: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        if self.quick:
            window, width, layers, batch = 16, 32, 2, 2
        codes = torch.randint(SYMBOLS, (batch, window), device=self.device)
        return GPT(SYMBOLS, window, width, layers, 4, 0.1), (codes, codes)


class Squared(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.body(images).square().mean()


def report(blocks: list[tuple[bool, float]], parts: Path) -> str:
    """Return the result: each block is compared with its two neighbours.

    `blocks`: whether protection was on, and the mean seconds of its steps.
    """
    pairs = []
    for (_, before_s), (on, here_s), (_, after_s) in zip(blocks, blocks[1:], blocks[2:], strict=False):
        around_s = (before_s + after_s) / 2
        pairs.append((here_s, around_s) if on else (around_s, here_s))
    added_ms = [1e3 * (on_s - off_s) for on_s, off_s in pairs]
    return json.dumps(
        {
            "step_ms": 1e3 * statistics.median(off_s for _, off_s in pairs),
            "ratio": statistics.median(on_s / off_s for on_s, off_s in pairs),
            "added_ms": statistics.median(added_ms),
            "added_ms_quartiles": statistics.quantiles(added_ms, n=4)[::2],
            "parts_us": {name.strip(): wall_us for name, (wall_us, _) in json.loads(parts.read_text()).items()},
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("network", choices=("host", "device_bound", "buffers"))
    parser.add_argument("parts", type=Path, help="a file for where the shim spends its time")
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--block-steps", type=int, default=6)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    network, batch = getattr(Networks(args.quick, device), args.network)()
    model = DistributedDataParallel(network.to(device), device_ids=[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not args.quick)
    steps, protected = args.blocks * args.block_steps, True
    blocks: list[tuple[bool, float]] = []
    torch.cuda.synchronize()
    started_s = time.perf_counter()
    for number in itertools.count(1):
        breakdown.attach()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(*batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % args.block_steps == 0:
            torch.cuda.synchronize()
            now_s = time.perf_counter()
            blocks.append((protected, (now_s - started_s) / args.block_steps))
        protected = turn(args.block_steps)
        if number % args.block_steps == 0:
            started_s = time.perf_counter()
        if number == steps:
            break
    breakdown.write(args.parts)
    print(report(blocks[2:], args.parts), flush=True)
    dist.destroy_process_group()


main()
