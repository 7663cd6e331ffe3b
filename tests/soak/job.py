"""A long job that faults come to from outside, on one machine or on two, and what became of it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soak.draw import KILL, NODE, PLANNED, Fault, Struck, draw, why_not_now
from soak.held import Held
from support.cli_harness import Cli
from support.machines import Fleet, lose
from support.relay_run import plain
from support.training import differences

from torchrelay.protocol.words.level import Level

SCRIPT, STEPS_PER_EPOCH = "ddp.py", 11
STEP_S = 0.2
END_S = 600.0
"""How long the steps that are left may take, once no fault comes any more and they are quick."""
LOOK_S = 0.2
ASK_S = 60.0
PATIENCE_S = 60.0
"""A fault that the job cannot take for so long gives way to the next one. It is long enough for ranks that are all on one machine
to move to the other one in a calm moment."""
OFTEN = 100_000
MANY = 5
"""Planned moves that were all refused: whatever refuses each of them is a fault."""
_SIGNALS = {KILL: signal.SIGKILL, "stop": signal.SIGSTOP}


@dataclass(frozen=True)
class Shape:
    """`ranks`, `spares`: of each machine."""

    name: str
    machines: int
    ranks: int
    spares: int = 1

    @property
    def world_size(self) -> int:
        return self.machines * self.ranks


ONE_MACHINE = Shape("one machine", 1, 4)
TWO_MACHINES = Shape("two machines", 2, 1)
"""The loss of one takes one rank with it, for which the other one has a spare."""


@dataclass(frozen=True)
class Ended:
    """`exit_codes`: of the commands that were there at the end. `struck`: how often what struck; `became`: events by name.

    `refused`: what planned moves were refused with.
    """

    exit_codes: tuple[int | None, ...]
    struck: dict[str, int]
    became: dict[str, int]
    differences: tuple[str, ...]
    leaks: tuple[str, ...]
    held: str
    refused: dict[str, int]
    steps: int
    took_s: float

    @property
    def good(self) -> bool:
        moves = self.struck.get(PLANNED) or sum(self.refused.values()) < MANY
        return set(self.exit_codes) == {0} and not self.differences and not self.leaks and bool(self.struck and moves)

    def told(self) -> str:
        lines = [
            f"exit codes {self.exit_codes}, {self.steps} steps in {self.took_s:.0f} s",
            f"struck: {_listed(self.struck)}",
            f"became: {_listed(self.became)}",
            *(f"refused {count} times: {reason}" for reason, count in sorted(self.refused.items())),
            self.held,
        ]
        return "\n".join([*filter(None, lines), *self.differences, *self.leaks])


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "nothing"


class _Commands(Cli):
    """What they say goes to files: a pipe that nobody reads would be full some day."""

    def start_program(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        number = len(self._started)
        inherited = {k: v for k, v in os.environ.items() if k not in ("TORCHRELAY_SECRET", "OMP_NUM_THREADS")}
        with open(self.folder / f"said-{number}", "w") as said:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=inherited | {"TORCHRELAY_STATE_DIR": str(self.state)} | environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                text=True,
            )
        self._started.append(process)
        return process

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            if process.poll() is None:
                process.terminate()  # its controller, agent and ranks end with it
                try:
                    process.wait(ASK_S)
                except subprocess.TimeoutExpired:
                    lose(process)


def soak(folder: Path, shape: Shape, seconds: float, seed: int) -> Ended:
    """Strikes a job in `folder`, a new one with a short path, for so long, and compares it with an undisturbed run."""
    epochs = str(int(seconds / STEP_S) // STEPS_PER_EPOCH + 1)
    with _Commands(folder) as cli:
        job = _Job(cli, shape, epochs, random.Random(f"{seed}/{shape.name}"))
        began_s = time.monotonic()
        job.run(seconds)
        took_s = time.monotonic() - began_s
        codes = tuple(command.returncode for command in job.fleet.commands)
    (folder / "reference").mkdir()
    reference = plain(
        folder / "reference", SCRIPT, epochs, ranks=shape.world_size, environment={"STEP_S": "0"}, limit_s=END_S
    )
    different = tuple(differences(reference, job.fleet.out, shape.world_size))
    steps = int(epochs) * STEPS_PER_EPOCH
    became, leaks, refused = job.became(), tuple(job.held.leaks()), dict(job.refused)
    return Ended(codes, dict(job.struck), became, different, leaks, job.held.told(), refused, steps, took_s)


class _Job:
    def __init__(self, cli: Cli, shape: Shape, epochs: str, chance: random.Random) -> None:
        self._cli, self._shape, self._chance = cli, shape, chance
        self._hurry, temporary = cli.folder / "hurry", cli.folder / "tmp"
        temporary.mkdir()
        options = [f"--respawn-limit={OFTEN}", f"--max-restarts={OFTEN}", "--refill", "--quiet"]
        self.fleet = Fleet(
            cli,
            *options,
            spares=[shape.spares] * shape.machines,
            script=SCRIPT,
            arguments=[epochs],
            local_ranks=shape.ranks,
            STEP_S=str(STEP_S),
            HURRY=str(self._hurry),
            TMPDIR=str(temporary),
            TORCHINDUCTOR_CACHE_DIR=str(cli.folder / "cache"),  # torch makes it, and leaves it
        )
        self.held = Held(temporary)
        self.struck: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._before: list[Struck] = []
        self._latest: list[int] = []
        """Ranks that were struck, or lost with a machine, since the job was asked: its next answer says how far they had come."""
        self._names = [""] * shape.machines
        self._gone: int | None = None
        self._was_protected = False

    def run(self, seconds: float) -> None:
        """Until the job has ended, or has had more time than it can need. Faults come from when it is protected."""
        end_s = time.monotonic() + seconds + END_S
        until_s = end_s
        fault = draw(self._chance, self._shape.world_size, self._shape.machines)
        next_s = time.monotonic() + fault.pause_s
        while self._runs() and (now_s := time.monotonic()) < end_s:
            if self._was_protected and until_s == end_s:
                until_s = now_s + seconds
            if now_s >= until_s:
                self._hurry.touch()
            if self._gone is not None:
                self._bring_back(self._gone)
            elif next_s <= now_s < until_s and (self._strike(fault) or now_s >= next_s + PATIENCE_S):
                fault = draw(self._chance, self._shape.world_size, self._shape.machines)
                next_s = time.monotonic() + fault.pause_s
            time.sleep(LOOK_S)

    def became(self) -> dict[str, int]:
        """Of the machine that knows most: one that was lost has seen less."""
        names = (
            *("migration_finished", "rank_spread", "process_respawned", "spare_made", "spare_dropped"),
            *("node_lost", "job_restarted"),
        )
        seen = [{n: self._count(m, n) for n in names} for m in range(self._shape.machines)]
        return {n: count for n in names if (count := max(counts[n] for counts in seen))}

    def _count(self, machine: int, name: str) -> int:
        lives = self._names[machine].count("+") + 1
        return sum(len(self.fleet.events(machine, name, "+" * life)) for life in range(lives))

    def _runs(self) -> bool:
        return self._gone is not None or any(command.poll() is None for command in self.fleet.commands)

    def _strike(self, fault: Fault) -> bool:
        """Whether it was done with the fault; if not, it is tried again soon."""
        status = self._ask()
        if status is None:
            return False
        ranks = {r["rank"]: r for r in status["ranks"]}
        boundaries = [r["boundary"] for r in ranks.values()]
        self._before += [Struck(rank, max(boundaries)) for rank in self._latest]
        self._latest.clear()
        whole = status["spares"]["ready"] >= status["spares"]["wanted"] and all(
            r["state"] == "running" for r in ranks.values()
        )
        wholly_protected = Level(status["protection"]) is Level.PROTECTED
        if whole:
            for command in self.fleet.commands:
                self.held.look(command.pid, sum(self.struck.values()))
        promised = Level(status["protection"]).promises and min(boundaries) > 0
        self._was_protected = self._was_protected or promised
        if why_not_now(fault, promised, boundaries, whole and wholly_protected, self._before):
            return False
        if fault.kind == NODE:
            self._gone = fault.target
            self._lost_before = self._gone_on(1 - fault.target)
            self._latest += [rank for rank, r in ranks.items() if r["node"].partition("-")[0] == f"n{fault.target}"]
            lose(self.fleet.commands[fault.target])
        elif fault.kind == PLANNED:
            asked = self._torchrelay("migrate", f"--rank={fault.target}", "--reason=soak", "--no-wait")
            if asked.returncode:
                self.refused[(asked.stdout + asked.stderr).strip() or "no word"] += 1
            else:
                self.struck[PLANNED] += 1
            return True
        else:
            try:
                os.kill(ranks[fault.target]["pid"], _SIGNALS[fault.kind])
            except ProcessLookupError:
                return False  # it has been replaced since
            self._latest.append(fault.target)
        self.struck[fault.kind] += 1
        return True

    def _bring_back(self, machine: int) -> None:
        """Once the other one has given it up, or has ended without it."""
        other = self.fleet.commands[1 - machine]
        if other.poll() is None and self._gone_on(1 - machine) <= self._lost_before:
            return
        self._gone = None
        if other.poll() is None:
            self._names[machine] += "+"
            self.fleet.commands[machine] = self.fleet.start(machine, self._names[machine])

    def _gone_on(self, machine: int) -> int:
        """How often it has given another one up, or gone on after a loss."""
        return self._count(machine, "node_lost") + self._count(machine, "migration_finished")

    def _ask(self) -> dict[str, Any] | None:
        """None where nobody answers now."""
        answer = self._torchrelay("status", "--json")
        if answer.returncode or not answer.stdout.strip():
            return None
        status: dict[str, Any] = json.loads(answer.stdout.splitlines()[0])
        return status if status["ranks"] else None

    def _torchrelay(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "torchrelay.cli", *words],
            env={**os.environ, "TORCHRELAY_STATE_DIR": str(self._cli.state)},
            capture_output=True,
            text=True,
            timeout=ASK_S,
            check=False,
        )
