"""Trains a small GPT three times: undisturbed, under torchrelay with three failures, restarted the classic way.

    make demo

Writes demo-out/: the picture demo.png, and for each run its losses, output and (for torchrelay) events.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path

import psutil
from demo_picture import draw
from demo_runs import DemoError, Run, process_of_rank, read_events, run
from rich.console import Console
from rich.table import Table

SCRIPT = Path(__file__).with_name("train_gpt.py")
RANKS = 3
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
TORCHRELAY = [sys.executable, "-m", "torchrelay.cli", "run", "--nproc-per-node", str(RANKS)]
NAMES = {"planned": "planned move", "kill": "SIGKILL", "stop": "hang"}


def faults(total_steps: int) -> list[str]:
    """One of each kind, each with a rank of its own; the kill strikes rank 0, in the middle of its backward."""
    return [
        f"planned:rank=2,step={total_steps // 7}",
        f"kill:rank=0,step={total_steps * 3 // 5},phase=backward",
        f"stop:rank=1,step={total_steps * 4 // 5},phase=forward",
    ]


def run_undisturbed(out: Path, script_args: list[str]) -> Run:
    return run("undisturbed", [[*TORCHRUN, str(SCRIPT), "--out", str(out), *script_args]], out)


def run_torchrelay(out: Path, script_args: list[str], total_steps: int) -> Run:
    wanted = faults(total_steps)
    options = ["--spares", str(len(wanted)), "--json", "--events", str(out / "events.jsonl")]
    options += [option for fault in wanted for option in ("--inject", fault)]
    out.mkdir(parents=True, exist_ok=True)
    done = run("torchrelay", [[*TORCHRELAY, *options, str(SCRIPT), "--out", str(out), *script_args]], out)
    done.events = read_events(out / "events.jsonl")
    done.summary = json.loads((out / "stdout.txt").read_text().splitlines()[-1])
    return done


def run_classic(out: Path, script_args: list[str], victim: int, in_step: int) -> tuple[Run, float]:
    """One rank is killed in the given step, and the job is started again at once; returns the run and when that was."""
    killed_s: list[float] = []

    def on_step(step: int, launcher: psutil.Process) -> None:
        if step == in_step - 1 and not killed_s:
            process = process_of_rank(launcher, victim)
            if process is None:
                raise DemoError(f"torchrun has no process with rank {victim}")
            killed_s.append(time.time())
            process.kill()

    command = [*TORCHRUN, str(SCRIPT), "--out", str(out), "--resume", *script_args]
    done = run("checkpoint and restart", [command, command], out, on_step)
    if not killed_s:
        raise DemoError(f"step {in_step - 1} was over before it was seen")
    return done, killed_s[0]


def redone_after_restart(classic: Run, killed_s: float) -> int:
    """Steps that had to be done again, the one in flight included."""
    before = [row.step for row in classic.rows if row.unix_time_s <= killed_s]
    after = [row.step for row in classic.rows if row.unix_time_s > killed_s]
    return before[-1] + 1 - after[0] + 1


def standstills_s(relay: Run) -> list[float]:
    """For each migration, by the script's own log: how long no new step was done."""
    return [
        relay.standstill_s(e["time_s"] - sum(e["downtime_s"].values()), e["time_s"])
        for e in relay.finished_migrations()
    ]


def same_weights(one: Run, other: Run) -> bool:
    return len(other.digests) == RANKS and one.digests == other.digests


def comparison(undisturbed: Run, relay: Run, classic: Run, killed_s: float) -> Table:
    def yes(value: bool) -> str:
        return "yes" if value else "NO"

    kinds = [fault.partition(":")[0] for fault in relay.summary["faults_injected"]]
    still = standstills_s(relay)
    restart_s = classic.standstill_s(killed_s, killed_s)
    runs = (undisturbed, relay, classic)
    table = Table(title="the same training, three times", title_justify="left", box=None, pad_edge=False)
    for column in ("", "undisturbed", "torchrelay", "checkpoint and restart"):
        table.add_column(column, overflow="fold")
    table.add_row("failures", "none", ", ".join(NAMES.get(k, k) for k in kinds), NAMES["kill"])
    table.add_row("whole command", *[f"{r.wall_s:.1f} s" for r in runs])
    table.add_row("first to last step", *[f"{r.rows[-1].unix_time_s - r.rows[0].unix_time_s:.1f} s" for r in runs])
    redone = redone_after_restart(classic, killed_s)
    table.add_row("steps lost and done again", "0", str(relay.summary["steps_redone"]), str(redone))
    each = " + ".join(f"{s:.1f}" for s in still)
    table.add_row("downtime (no new step)", "0 s", f"{each} = {sum(still):.1f} s", f"{restart_s:.1f} s")
    table.add_row("final loss", *[r.rows[-1].mean_loss for r in runs])
    equal_loss = [yes(r.last_losses() == undisturbed.last_losses()) for r in (relay, classic)]
    table.add_row("every loss bitwise equal", "-", *equal_loss)
    table.add_row("weights bitwise equal", "-", *[yes(same_weights(undisturbed, r)) for r in (relay, classic)])
    return table


def phases(relay: Run) -> Table:
    committed = [m for m in relay.summary["migrations"] if m["outcome"] == "committed"]
    names = list(committed[0]["downtime_s"]) if committed else []
    table = Table(title="torchrelay's downtime by phase, seconds", title_justify="left", box=None, pad_edge=False)
    for column in ("", "rank", *[n.replace("_", " ") for n in names], "sum"):
        table.add_column(column, justify="left" if column in ("", "rank") else "right")
    for m in committed:
        seconds = [f"{m['downtime_s'][n]:.2f}" for n in names]
        table.add_row(m["kind"], ", ".join(map(str, m["ranks"])), *seconds, f"{m['downtime_total_s']:.2f}")
    return table


def failure_of(undisturbed: Run, relay: Run) -> str:
    """Why the demo has failed; empty if torchrelay did what it promises."""
    moved = len(relay.finished_migrations())
    if moved != len(relay.summary["faults_injected"]):
        return f"{len(relay.summary['faults_injected'])} faults, but {moved} migrations"
    if relay.last_losses() != undisturbed.last_losses():
        return "a loss under torchrelay differs from the undisturbed run"
    if not same_weights(undisturbed, relay):
        return "weights under torchrelay differ from the undisturbed run"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    parser.add_argument("script_args", nargs="*", help="after --: further arguments of train_gpt.py")
    args = parser.parse_args()
    for name in ("undisturbed", "torchrelay", "classic"):
        shutil.rmtree(args.out / name, ignore_errors=True)
    console = Console(width=None if sys.stdout.isatty() else 100)
    try:
        undisturbed = run_undisturbed(args.out / "undisturbed", args.script_args)
        relay = run_torchrelay(args.out / "torchrelay", args.script_args, undisturbed.rows[-1].step)
        kill = next(e for e in relay.events if e["name"] == "fault_injected" and e["fault"].startswith("kill"))
        classic, killed_s = run_classic(args.out / "classic", args.script_args, kill["rank"], kill["step"])
    except DemoError as e:
        print(f"demo: {e}", file=sys.stderr)
        return 1
    draw(undisturbed, relay, classic, killed_s, args.out / "demo.png")
    console.print()
    console.print(comparison(undisturbed, relay, classic, killed_s))
    console.print()
    console.print(phases(relay))
    console.print(f"\npicture: {args.out / 'demo.png'}   events: {relay.folder / 'events.jsonl'}", highlight=False)
    reason = failure_of(undisturbed, relay)
    if reason:
        print(f"demo: {reason}", file=sys.stderr)
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
