"""What torchrelay does on one real GPU, in a few minutes: communicators whose peers die, and migrations, bitwise.

    make gpu-check                               # with the Python and the torch that are there
    python scripts/gpu_check --sections nccl     # one section, or several
    python scripts/gpu_check --device cpu        # goes through the same motions on the CPU, to check the check

Several ranks share the GPU. Results are written to OUT/results.jsonl as each section ends. Without a GPU that torch can use it
says so and succeeds.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import where as wheres

wheres.use_source_tree()
NEEDED = {"grpc": "grpcio", "google.protobuf": "protobuf", "httpx2": "httpx2"}
NEEDED |= {name: name for name in ("cryptography", "psutil", "rich", "typer", "watchdog", "prometheus_client", "yaml")}


def missing() -> list[str]:
    """Return the packages that torchrelay needs and that this Python lacks."""
    lacking = [package for module, package in NEEDED.items() if not _is_there(module)]
    try:
        metadata.version("torchrelay")
    except metadata.PackageNotFoundError:
        lacking.append(str(wheres.ROOT))
    return lacking


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent is not there
        return False


def about() -> dict[str, str]:
    import torch

    facts = {"python": sys.version.split()[0], "torch": torch.__version__, "cuda": str(torch.version.cuda)}
    if torch.cuda.is_available():
        facts["device"] = torch.cuda.get_device_name(0)
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        facts["memory_GiB"] = f"{torch.cuda.get_device_properties(0).total_memory / 2**30:.0f}"
    return facts


def check(where: wheres.Where, chosen: list[str]) -> int:
    import communicators
    import corpus
    import readings
    import training
    from sections import Found, Report

    report = Report(where.out)
    with ExitStack() as stack:
        on_device: dict[str, Callable[[], Found]] = {
            "readings": readings.agree,
            "speed": lambda: communicators.speed(where),
        }
        if {"killed-peers", "two-groups", "alive"} & set(chosen) and where.device is wheres.Device.CUDA:
            survivor = stack.enter_context(communicators.survivor(where))
            on_device |= {"killed-peers": survivor.killed_peers, "two-groups": survivor.two_groups}
            on_device |= {"alive": survivor.alive}
        on_device["corpus"] = lambda: corpus.cells(where)
        on_device["step-cost"] = lambda: training.step_cost(where)
        on_device["transfer"] = lambda: training.transfer(where)
        on_device["nccl"] = lambda: training.migrations(where, "nccl")
        sections: dict[str, Callable[[], Found]] = {
            "versions": lambda: Found(about()),
            **(on_device if where.device is wheres.Device.CUDA else {}),
            "gloo": lambda: training.migrations(where, "gloo"),
        }
        for name in SECTIONS:
            if name in chosen and name in sections:
                report.add(name, sections[name])
    print(
        f"{len(report.results)} sections"
        + (f", wrong: {', '.join(report.failed)}" if report.failed else ", nothing wrong")
    )
    return 1 if report.failed else 0


SECTIONS = (
    "versions",
    "readings",
    "speed",
    "killed-peers",
    "two-groups",
    "step-cost",
    "transfer",
    "nccl",
    "gloo",
    "corpus",
    "alive",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=wheres.Device, choices=list(wheres.Device), default=wheres.Device.CUDA)
    parser.add_argument("--out", type=Path, default=Path("out/gpu-check"))
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="small programs: for an imitated GPU")
    args = parser.parse_args()
    if lacking := missing():
        print(
            f"gpu-check: this Python lacks {', '.join(lacking)}; install them: {sys.executable} -m pip install {' '.join(lacking)}",
            file=sys.stderr,
        )
        return 2
    try:
        import torch
    except ModuleNotFoundError:
        print(
            f"gpu-check: {sys.executable} has no torch; choose one that has: make gpu-check PYTHON=...", file=sys.stderr
        )
        return 2
    if args.device is wheres.Device.CUDA and not torch.cuda.is_available():
        print("gpu-check: this machine has no CUDA GPU that torch can use; nothing was checked")
        return 0
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    where = wheres.Where(args.device, args.out.resolve(), args.quick or args.device is wheres.Device.CPU)
    os.environ.update(where.environment())
    return check(where, args.sections)


if __name__ == "__main__":
    sys.exit(main())
