"""What a step of programs that nobody here wrote costs with protection: each with torchrun and with `torchrelay run`, in turns.

Of each run the latter half of the steps counts: what begins a run (comparisons of ranks, first looks) is none of a step's cost.
Without spares and restarts, so that nothing else takes the processors. Programs come from the manifest of the wild corpus; their
sources are in a folder, as for `make wild`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from wild import environments, programs, sources
from wild.programs import Manifest, Program

from torchrelay.cli.drill import recording

PROJECT = environments.PROJECT
RELAY_OPTIONS = ("--spares=0", "--max-restarts=0", "--respawn-limit=0", "--no-refill", "--cost-limit=0")
"""No limit: a program that would be let go of for its cost is one of those that are looked for."""
LIMIT_S = 600
"""Of one run."""
VARIABLES = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}


@dataclass(frozen=True)
class Steps:
    """Steps of the slowest rank of a run: median and 95 % by the clock, and the training thread's processor time, in seconds."""

    count: int
    wall_s: float
    wall_p95_s: float
    thread_s: float


class NoSteps(Exception):
    """A run failed or made too few steps. The message says which."""


def steps_of(folder: Path) -> Steps:
    """Read what the recorder has written. Raises NoSteps."""
    found = [_of_rank(path) for path in sorted(folder.glob("rank-*.jsonl"))]
    if not found or min(steps.count for steps in found) < 8:
        raise NoSteps("fewer than 8 steps")
    return max(found, key=lambda steps: steps.wall_s)


def _of_rank(path: Path) -> Steps:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    at = [(line["unix_s"], line["thread_s"]) for line in lines if "unix_s" in line]
    half = at[len(at) // 2 :]
    walls = sorted(now[0] - then[0] for then, now in itertools.pairwise(half))
    threads = sorted(now[1] - then[1] for then, now in itertools.pairwise(half))
    if not walls:
        return Steps(len(at), 0.0, 0.0, 0.0)
    return Steps(len(at), statistics.median(walls), walls[len(walls) * 95 // 100], statistics.median(threads))


def command(program: Program) -> list[str]:
    """Return the program's command with the words for a longer run."""
    longer = dict(program.longer)
    return [longer.get(word, word) for word in program.command]


def run(launcher: list[str], program: Program, python: Path, work: Path, folder: Path) -> Steps:
    """Run the program once, in a copy of its folder. Raises NoSteps."""
    copy, recorded = folder / "work", folder / "recorded"
    shutil.copytree(work, copy, symlinks=True)
    recorded.mkdir(parents=True)
    given = {**os.environ, **VARIABLES, **program.variables}
    environment = {**given, **recording.variables(recording.RecordingSettings(str(recorded), times_only=True), given)}
    words = [str(python), "-m", *launcher, f"--nproc-per-node={program.ranks}", *command(program)]
    with open(folder / "said", "wb") as said:
        try:
            done = subprocess.run(words, cwd=copy, env=environment, stdout=said, stderr=said, timeout=LIMIT_S)
        except subprocess.TimeoutExpired as e:
            raise NoSteps(f"{launcher[0]} did not end within {LIMIT_S} s") from e
    if done.returncode != 0:
        raise NoSteps(
            f"{launcher[0]} ended with {done.returncode}: {(folder / 'said').read_text(errors='replace')[-300:]}"
        )
    return steps_of(recorded)


def measure(program: Program, manifest: Manifest, given: argparse.Namespace, folder: Path) -> str:
    """Return a line of the table. Raises NoSteps, SourceError."""
    work = folder / "laid-out"
    sources.lay_out(program, manifest, given.sources, work)
    python = environments.make(manifest.environments[program.environment], given.folder / "environments")
    for maker in program.data:
        makes = [str(python), str(PROJECT / "tests/wild/tiny_data.py"), maker, str(work)]
        subprocess.run(makes, check=True, stdout=subprocess.DEVNULL)
    launchers = {"plain": ["torch.distributed.run", "--standalone"], "relay": ["torchrelay.cli", "run", *RELAY_OPTIONS]}
    found: dict[str, list[Steps]] = {name: [] for name in launchers}
    for turn in range(given.rounds):
        for name in sorted(launchers, reverse=turn % 2 == 1):
            place = folder / f"{name}{turn}"
            found[name].append(run(launchers[name], program, python, work, place))
            shutil.rmtree(place)
    plain, relay = (
        [
            statistics.median(values) * 1e3
            for values in zip(*((s.wall_s, s.wall_p95_s, s.thread_s) for s in found[name]))
        ]
        for name in ("plain", "relay")
    )
    return (
        f"| {program.name} | {found['relay'][0].count} | {plain[0]:.1f} | {relay[0]:.1f} | {relay[0] / plain[0]:.2f} "
        f"| {plain[1]:.1f} | {relay[1]:.1f} | {relay[2] - plain[2]:+.1f} |"
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="programs; all unless given")
    parser.add_argument("--sources", type=Path, required=True, help="a folder with copies of the repositories")
    parser.add_argument("--folder", type=Path, default=PROJECT / ".wild", help="where environments are kept")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each kind")
    given = parser.parse_args(arguments)
    given.sources, given.folder = given.sources.absolute(), given.folder.absolute()
    manifest = programs.load()
    print(
        "| program | steps | torchrun, ms | torchrelay, ms | ratio | 95 % of steps, torchrun | torchrelay | thread, ms more |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    failed = 0
    for program in manifest.named(given.names):
        with tempfile.TemporaryDirectory() as folder:
            try:
                print(measure(program, manifest, given, Path(folder)), flush=True)
            except (NoSteps, sources.SourceError) as e:
                print(f"| {program.name} | {e} |", flush=True)
                failed += 1
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
