"""The demo's script on the device: undisturbed, and with migrations of each kind, bitwise against the undisturbed run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sections import Found, SectionError
from where import ROOT, Device, Where

EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(EXAMPLES))
from demo_runs import DemoError, Run, read_events, run  # noqa: E402 - lies beside the script that it runs

SCRIPT = EXAMPLES / "train_gpt.py"
LARGE_STATE = Path(__file__).with_name("programs") / "large_state.py"
STEPS = Path(__file__).with_name("programs") / "steps.py"
NETWORKS = ("host", "device_bound", "buffers")


@dataclass(frozen=True)
class Size:
    model: str
    steps: int
    """Enough for a spare to get ready beside them."""
    batch: int

    def options(self, ranks: int) -> list[str]:
        sequences = self.batch * ranks * self.steps
        size = f"{self.model} --batch {self.batch} --sequences {sequences} --epochs 2 --checkpoint-every 100000"
        return [*size.split(), "--print-every", "50"]

    @property
    def total_steps(self) -> int:
        return 2 * self.steps


LARGE = Size("--width 256 --layers 4", 45, 16)
SMALL = Size("--width 64 --layers 2", 100, 8)


@dataclass(frozen=True)
class Training:
    """Runs of the script with two ranks, and one backend."""

    where: Where
    backend: str
    ranks: int = 2

    @property
    def folder(self) -> Path:
        return self.where.out / f"{self.backend}-{self.ranks}"

    @property
    def size(self) -> Size:
        return SMALL if self.where.quick else LARGE

    def undisturbed(self, name: str) -> Run:
        """Train with torchrun. Raises SectionError."""
        return self._run(name, _torchrun(self.ranks), self.folder / name)

    def disturbed(self, name: str, fault: str) -> Run:
        """Train with a fault. Raises SectionError."""
        out = self.folder / name
        out.mkdir(parents=True)
        options = ["--json", "--events", str(out / "events.jsonl"), "--inject", fault]
        done = self._run(name, [*_torchrelay(self.ranks, 1), *options], out)
        done.summary = json.loads((out / "stdout.txt").read_text().splitlines()[-1])
        done.events = read_events(out / "events.jsonl")
        return done

    def _run(self, name: str, launcher: list[str], out: Path) -> Run:
        device = self.where.device.value
        script = [str(SCRIPT), "--out", str(out), "--device", device, "--backend", self.backend, "--deterministic"]
        try:
            return run(f"   {self.backend}: {name}", [[*launcher, *script, *self.size.options(self.ranks)]], out)
        except DemoError as error:
            raise SectionError(f"{error}\n{_last_lines(out / 'stderr.txt')}") from error


def _torchrun(ranks: int) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


def _torchrelay(ranks: int, spares: int) -> list[str]:
    command = [sys.executable, "-m", "torchrelay.cli", "run", "--nproc-per-node", str(ranks)]
    return [*command, "--spares", str(spares)]


def _last_lines(path: Path, count: int = 30) -> str:
    try:
        return "\n".join(path.read_text().splitlines()[-count:])
    except FileNotFoundError:
        return ""


def faults(total_steps: int) -> dict[str, str]:
    """Return the fault of each kind of migration."""
    return {
        "planned": f"planned:rank=1,step={total_steps // 4}",
        "kill": f"kill:rank=0,step={total_steps // 2},phase=backward",
        "stop": f"stop:rank=1,step={total_steps // 2},phase=forward",
    }


def verdict(undisturbed: Run, moved: Run, ranks: int) -> str:
    """Return what is wrong with a run with a migration; empty if nothing is."""
    if len(moved.finished_migrations()) != 1:
        return f"{len(moved.finished_migrations())} migrations, expected 1"
    return difference(undisturbed, moved, ranks)


def difference(one: Run, other: Run, ranks: int) -> str:
    """Return where two runs differ; empty if they are bitwise equal."""
    if other.last_losses() != one.last_losses():
        steps = [s for s, losses in one.last_losses().items() if other.last_losses().get(s) != losses]
        return f"losses differ from step {steps[0]} on"
    if len(other.digests) != ranks or other.digests != one.digests:
        return "weights differ"
    return ""


def migrations(where: Where, backend: str) -> Found:
    """Run twice undisturbed, which has to give equal results, and then once with each kind of migration."""
    training = Training(where, backend)
    with ThreadPoolExecutor(2 if where.device is Device.CUDA and not where.quick else 1) as at_once:
        runs = [at_once.submit(training.undisturbed, name) for name in ("undisturbed", "undisturbed again")]
        undisturbed, again = [each.result() for each in runs]
        if differs := difference(undisturbed, again, training.ranks):
            return Found({}, (f"two undisturbed runs differ, so nothing can be compared: {differs}",))
        moved = {
            kind: at_once.submit(training.disturbed, kind, fault)
            for kind, fault in faults(training.size.total_steps).items()
        }
    facts, problems = {"step_ms": 1e3 * undisturbed.median_step_s()}, []
    for kind, future in moved.items():
        try:
            done = future.result()
        except SectionError as error:
            problems.append(f"{kind}: {error}")
            continue
        wrong = verdict(undisturbed, done, training.ranks)
        facts[kind] = {**_cost(done), "bitwise_equal": not wrong}
        if wrong:
            problems.append(f"{kind}: {wrong}; see {done.folder}")
    return Found(facts, tuple(problems))


def _cost(done: Run) -> Mapping[str, float]:
    moved_bytes = sum(m["transferred_bytes"] for m in done.summary["migrations"])
    return {"downtime_s": done.summary["downtime_total_s"], "moved_MiB": moved_bytes / 2**20}


def transfer(where: Where) -> Found:
    """Move a rank with 2 GiB of tensors as planned, and measure how fast they go from device to device. Raises SectionError."""
    out = where.out / "transfer"
    out.mkdir(parents=True)
    width, steps = (256, 60) if where.quick else (8192, 40)
    options = ["--json", "--events", str(out / "events.jsonl"), "--inject", f"planned:rank=1,step={steps // 2}"]
    command = [*_torchrelay(2, 1), *options, str(LARGE_STATE), str(width), str(steps)]
    with (out / "stderr.txt").open("w") as stderr:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=where.environment(), check=False
        )
    if done.returncode != 0:
        raise SectionError(f"exit code {done.returncode}:\n{_last_lines(out / 'stderr.txt')}")
    ends = dict(re.findall(r"rank (\d) ends with (\S+)", done.stdout))
    moves = [e for e in read_events(out / "events.jsonl") if e["name"] == "migration_finished"]
    problems = [] if len(set(ends.values())) == 1 and len(ends) == 2 else [f"the two ranks end with {ends}"]
    if [e["outcome"] for e in moves] != ["committed"]:
        return Found({}, (*problems, f"of the migrations, one has to be committed: {moves}"))
    took_s, moved_bytes = moves[0]["downtime_s"], moves[0]["transferred_bytes"]
    facts = {"moved_MiB": moved_bytes / 2**20, "downtime_s": took_s, "beside_s": moves[0]["beside_s"]}
    facts["MiB_per_s"] = moved_bytes / 2**20 / took_s["transfer"] if took_s.get("transfer") else 0.0
    return Found(facts, tuple(problems))


def step_cost(where: Where) -> Found:
    """Measure steps of each network with protection on and off, in turns within one run. One rank has the GPU to itself."""
    facts = {}
    for network in NETWORKS:
        out = where.out / "step-cost" / network
        out.mkdir(parents=True)
        script = [str(STEPS), network, str(out / "parts.json"), *(["--quick"] if where.quick else [])]
        command = [*_torchrelay(1, 0), "--buddy-every", "0", "--cost-limit", "0", *script]
        with (out / "stderr.txt").open("w") as stderr:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=where.environment(), check=False
            )
        if done.returncode != 0:
            raise SectionError(f"{network}: exit code {done.returncode}:\n{_last_lines(out / 'stderr.txt')}")
        facts[network] = json.loads(done.stdout.splitlines()[-1])
    return Found(facts)
