"""Migrations with CUDA tensors: two ranks share one GPU, one migration of each kind, bitwise against an undisturbed run.

    make gpu-check

Without a CUDA GPU it says so and succeeds. `--device cpu` goes through the same motions on the CPU, to check the check.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))
from demo_runs import DemoError, Run, read_events, run  # noqa: E402 - lies beside the script that it runs

RANKS = 2
SCRIPT = EXAMPLES / "train_gpt.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
TORCHRELAY = [sys.executable, "-m", "torchrelay.cli", "run", "--nproc-per-node", str(RANKS), "--spares", "1"]
# Long enough for a spare to prepare beside it: a process that starts to use CUDA takes seconds.
SIZES = {
    "cuda": "--width 256 --layers 6 --batch 16 --sequences 6400 --epochs 4 --checkpoint-every 100 --print-every 50",
    "cpu": "--width 64 --layers 2 --batch 8 --sequences 2400 --epochs 2 --checkpoint-every 100 --print-every 50",
}


def faults(total_steps: int) -> dict[str, str]:
    return {
        "planned": f"planned:rank=1,step={total_steps // 10}",
        "kill": f"kill:rank=0,step={total_steps // 2},phase=backward",
        "stop": f"stop:rank=1,step={total_steps // 2},phase=forward",
    }


def migrate(kind: str, fault: str, out: Path, script_args: list[str]) -> Run:
    out.mkdir(parents=True)
    options = ["--json", "--events", str(out / "events.jsonl"), "--inject", fault]
    done = run(f"with {kind}", [[*TORCHRELAY, *options, str(SCRIPT), "--out", str(out), *script_args]], out)
    done.summary = json.loads((out / "stdout.txt").read_text().splitlines()[-1])
    done.events = read_events(out / "events.jsonl")
    return done


def verdict(undisturbed: Run, moved: Run) -> str:
    """Empty if everything is as it should be."""
    if len(moved.finished_migrations()) != 1:
        return f"{len(moved.finished_migrations())} migrations, expected 1"
    if moved.last_losses() != undisturbed.last_losses():
        steps = [s for s, losses in undisturbed.last_losses().items() if moved.last_losses().get(s) != losses]
        return f"losses differ from step {steps[0]} on"
    if len(moved.digests) != RANKS or moved.digests != undisturbed.digests:
        return "weights differ"
    return ""


def check(device: str, out: Path) -> int:
    shutil.rmtree(out, ignore_errors=True)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    script_args = ["--device", device, "--deterministic", *SIZES[device].split()]
    undisturbed = run(
        "undisturbed", [[*TORCHRUN, str(SCRIPT), "--out", str(out / "plain"), *script_args]], out / "plain"
    )
    again = run(
        "undisturbed again", [[*TORCHRUN, str(SCRIPT), "--out", str(out / "again"), *script_args]], out / "again"
    )
    if again.last_losses() != undisturbed.last_losses() or again.digests != undisturbed.digests:
        print("gpu-check: two undisturbed runs differ already: nothing can be compared on this device", file=sys.stderr)
        return 1
    table = Table(box=None, pad_edge=False)
    for column in ("migration", "rank", "downtime s", "moved MiB", "bitwise equal"):
        table.add_column(column)
    failed = False
    for kind, fault in faults(undisturbed.rows[-1].step).items():
        moved = migrate(kind, fault, out / kind, script_args)
        reason = verdict(undisturbed, moved)
        failed |= bool(reason)
        rank = fault.partition("rank=")[2].partition(",")[0]
        size = sum(m["transferred_bytes"] for m in moved.summary["migrations"]) / 2**20
        table.add_row(kind, rank, f"{moved.summary['downtime_total_s']:.2f}", f"{size:.1f}", reason or "yes")
    Console(width=None if sys.stdout.isatty() else 100).print(table)
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--out", type=Path, default=Path("out/gpu-check"))
    args = parser.parse_args()
    if args.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            print("gpu-check: this machine has no CUDA GPU that torch can use; nothing was checked")
            return 0
        print(f"gpu-check: {RANKS} ranks share {torch.cuda.get_device_name(0)}, torch {torch.__version__}")
    try:
        return check(args.device, args.out)
    except DemoError as e:
        print(f"gpu-check: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
