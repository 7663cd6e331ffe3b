"""`torchrelay bench detect`: faults are played into real jobs, and what was said about them is compared with what should be."""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from torchrelay.cli.detect.score import CLOCK_S, IGNORE, ScoreRow, judge
from torchrelay.cli.display import narrate
from torchrelay.cli.display.teller import make_console
from torchrelay.cli.display.waiting import waiting
from torchrelay.cli.folders import folder as folders
from torchrelay.protocol.errors import FatalError, UserError

RANKS = 2
DEFAULT_LAST_S = 2.5
GPUS = 64
RUN_LIMIT_S = 900.0
POLL_S = 0.1
AGENT_SILENT_S = 9.0
TARGET_RIGHT = 0.95
TARGET_FALSE_ALARMS = 1.0
PROCESS_LIMIT_S = 1.0
SILENCE_LIMIT_S = 10.0
STOPPED_LIMIT_S = 2.0
HANG_STEPS = 3
HANG_EXTRA_S = 5.0
KILLED = (1, 30)
STOPPED = (0, 80)
HUNG = (1, 140)
"""Rank and step."""
LOSSES = 3
"""Of these."""
DONE = "done"
"""How the timeline says that it is over."""


@dataclass(frozen=True)
class DetectOptions:
    out: Path
    script: Path | None
    device_days: float
    seed: int


def detect(options: DetectOptions) -> int:
    """Play the faults and judge what was detected. Return 0, or 1 if a target was missed. Raises UserError, FatalError."""
    script = options.script or Path(__file__).parents[4] / "bench" / "endless_training.py"
    if not script.is_file():
        raise UserError(f"--script {script}: no such file; give a training script that goes on until it is ended")
    options.out.mkdir(parents=True, exist_ok=True)
    console = make_console(sys.stderr)
    played = len(load_episodes())
    with waiting(console, "classes of faults", played + 1 + LOSSES) as are_done:
        rows = _replay(options.out / "replay", script, are_done)
        console.print(narrate.line(f"{played + 1} classes of faults of devices and nodes are played"))
        rows += _losses(options.out / "losses", script, lambda done: are_done(played + 1 + done))
        console.print(narrate.line(f"{LOSSES} ranks were lost and replaced; healthy noise is played now"))
        noise = _noise(options.device_days, options.seed)
    right = sum(r.right and r.detected for r in rows) / len(rows)
    result = {
        "rows": [asdict(r) | {"right": r.right, "in_time": r.in_time} for r in rows],
        "right": right,
        "noise": noise,
    }
    (options.out / "detect.json").write_text(json.dumps(result, indent=1))
    _print(make_console(sys.stdout), rows, right, noise)
    late = [r for r in rows if not r.in_time]
    return 0 if right >= TARGET_RIGHT and noise["per_1000"] < TARGET_FALSE_ALARMS and not late else 1


def load_episodes() -> list[dict[str, Any]]:
    text = resources.files("torchrelay.cli.detect").joinpath("timelines.yaml").read_text("utf-8")
    episodes: list[dict[str, Any]] = yaml.safe_load(text)
    return episodes


def timeline(episodes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the timeline that the agent plays. Each episode has a GPU of its own; one more GPU belongs to none.

    In the calls, the word GPU is replaced by the episode's number.
    """
    made = []
    for number, e in enumerate(episodes):
        calls = {
            key: [[number if a == "GPU" else a for a in call] for call in e.get(key, ())] for key in ("do", "undo")
        }
        made.append({"name": e["class"], "last_s": e.get("last_s", DEFAULT_LAST_S), **calls})
    return {"gpus": GPUS, "episodes": made}


def _replay(out: Path, script: Path, are_done: Callable[[int], None]) -> list[ScoreRow]:
    """Play faults of devices in a job that only observes. At the end stop its agent, as in a node that hangs."""
    episodes = load_episodes()
    out.mkdir(parents=True, exist_ok=True)
    plan = out / "timeline.json"
    played = out / "played.jsonl"
    plan.write_text(json.dumps(timeline(episodes)))
    played.unlink(missing_ok=True)
    with _running(out, script, ["--observe", "--replay", str(plan)]) as job:
        job.wait(lambda: _is_played(_lines(played), are_done), "the timeline was not played to its end")
        agent = job.agent_pid()
        stopped_s = time.time()
        os.kill(agent, signal.SIGSTOP)
        try:
            job.wait(lambda: any(v["rule"] == "node-silent" for v in job.named("health_verdict")), "", AGENT_SILENT_S)
        finally:
            os.kill(agent, signal.SIGCONT)
        verdicts = job.named("health_verdict")
        times = _lines(played)
    silent = next((v["time_s"] - stopped_s for v in verdicts if v["rule"] == "node-silent"), None)
    begun = [[p["time_s"] for p in times if p["name"] == e["class"]] for e in episodes]
    ends = [*(b[0] if b else math.inf for b in begun[1:]), stopped_s]
    rows = [judge(e, n, begun[n], verdicts, ends[n]) for n, e in enumerate(episodes)]
    told = "watch" if silent is not None else IGNORE
    return [*rows, ScoreRow("node silent", "watch", told, silent, SILENCE_LIMIT_S)]


def _is_played(lines: list[dict[str, Any]], are_done: Callable[[int], None]) -> bool:
    """Tell how many episodes have begun, and return whether all are over."""
    begun = {line["name"] for line in lines}
    are_done(len(begun - {DONE}))
    return DONE in begun


def _losses(out: Path, script: Path, are_done: Callable[[int], None]) -> list[ScoreRow]:
    """Let processes end, stop and hang, while spares take over, and return how each was detected."""
    hung = out / "hung"
    hung.unlink(missing_ok=True)
    options = ["--spares=3", f"--inject=stop:rank={STOPPED[0]},step={STOPPED[1]}"]
    with _running(out, script, options, {"DETECT_HANG": f"{HUNG[0]}:{HUNG[1]}:{hung}"}) as job:
        rank, step = KILLED
        job.wait(lambda: any(p["steps"] >= step for p in job.named("progress")), "the job does not train")
        killed_s = time.time()
        os.kill(job.rank_pid(rank), signal.SIGKILL)
        job.wait(lambda: _replaced(job, are_done) == LOSSES, "the lost ranks were not replaced")
        (stopped,), begun = job.named("fault_injected"), job.named("migration_started")
        speeds = [p["steps_per_s"] for p in job.named("progress") if p["steps_per_s"] > 0]
    hang_limit_s = HANG_STEPS / statistics.median(speeds) + HANG_EXTRA_S
    since_s = [
        ("process killed", KILLED[0], killed_s),
        ("process stopped", STOPPED[0], stopped["time_s"]),
        ("process hangs", HUNG[0], hung.stat().st_mtime),
    ]
    limits_s = (PROCESS_LIMIT_S, STOPPED_LIMIT_S, hang_limit_s)
    rows = []
    for (name, rank, at_s), limit_s in zip(since_s, limits_s, strict=True):
        found = next((m for m in begun if m["rank"] == rank and m["time_s"] >= at_s - CLOCK_S), None)
        got = "replace" if found is not None and found["kind"] == "unplanned" else IGNORE
        rows.append(ScoreRow(name, "replace", got, None if found is None else found["time_s"] - at_s, limit_s))
    return rows


def _committed(job: _Job) -> list[dict[str, Any]]:
    return [m for m in job.named("migration_finished") if m["outcome"] == "committed"]


def _replaced(job: _Job, are_done: Callable[[int], None]) -> int:
    """Tell how many ranks have been replaced, and return it."""
    done = len(_committed(job))
    are_done(done)
    return done


def _noise(device_days: float, seed: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "torchrelay.controller.health.simulate", str(device_days), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FatalError(f"healthy noise could not be simulated: {done.stderr[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class _Job:
    def __init__(self, process: subprocess.Popen[bytes], out: Path) -> None:
        self._process = process
        self._out = out

    def named(self, name: str) -> list[dict[str, Any]]:
        return [e for e in _lines(self._out / "events.jsonl") if e["name"] == name]

    def wait(self, condition: Callable[[], bool], otherwise: str, limit_s: float = RUN_LIMIT_S) -> None:
        """Wait until the condition is true. Otherwise raises FatalError with `otherwise`, or returns if that is empty."""
        end_s = time.monotonic() + limit_s
        while not condition():
            if self._process.poll() is not None or time.monotonic() > end_s:
                if otherwise:
                    raise FatalError(f"{otherwise}; see {self._out / 'output'}")
                return
            time.sleep(POLL_S)

    def rank_pid(self, rank: int) -> int:
        """Return the process id of a rank. Raises FatalError if its process is gone."""
        agent = self.agent_pid()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == agent and f"RANK={rank}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    return int(folder.name)
            except OSError:
                continue  # it has ended
        raise FatalError(f"the process of rank {rank} is not there; see {self._out / 'output'}")

    def agent_pid(self) -> int:
        (run,) = folders.running_jobs(self._out / "state")
        return run.processes[-1].pid


@contextmanager
def _running(out: Path, script: Path, options: list[str], variables: Mapping[str, str] | None = None) -> Iterator[_Job]:
    """Run a job, and end it when the block is left."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "events.jsonl").unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "torchrelay.cli",
        "run",
        f"--nproc-per-node={RANKS}",
        "--max-restarts=0",
        "--respawn-limit=0",
        "--no-refill",
    ]
    command += ["--events", str(out / "events.jsonl"), *options, str(script)]
    environ = {**os.environ, "TORCHRELAY_STATE_DIR": str(out / "state"), "OMP_NUM_THREADS": "1", **(variables or {})}
    with open(out / "output", "wb") as output:
        process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield _Job(process, out)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def _print(console: Console, rows: list[ScoreRow], right: float, noise: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("class", "detected", "verdict", "right", "seconds", "limit"):
        table.add_column(column, justify="right" if column in ("seconds", "limit") else "left")
    for r in rows:
        verdict = r.got if r.right else f"{r.got}, not {r.expected}"
        took = "-" if r.took_s is None else f"{r.took_s:.2f}"
        limit = "-" if r.limit_s is None else f"{r.limit_s:g}"
        style = "" if r.right and r.in_time else "red"
        table.add_row(
            r.name, "yes" if r.detected else "NO", verdict, "yes" if r.right else "NO", took, limit, style=style
        )
    console.print(table)
    console.print(f"\nright verdict: {right:.1%} of {len(rows)} classes (target {TARGET_RIGHT:.0%})")
    console.print(
        f"false alarms: {noise['count']} in {noise['device_days']:g} device-days of healthy noise, "
        f"{noise['per_1000']:.2f} per 1,000 (target below {TARGET_FALSE_ALARMS:g})"
    )
