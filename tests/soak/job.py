"""A long job that faults come to from outside, on one machine or on two, and what became of it."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soak import draw as d
from soak.commands import Commands
from soak.hand import Hand, NotStruckError
from soak.held import Held
from soak.machines import Machines
from soak.record import Row, Strike, merged, rows, table
from soak.shapes import Shape
from support.footprint import HANDS_BACK
from support.machines import Fleet
from support.network import Network
from support.relay_run import plain
from support.training import differences

from torchrelay.protocol.words.level import Level

SCRIPT, STEPS_PER_EPOCH = "long_run.py", 11
STEP_S = 0.2
END_S = 600.0
"""How long the steps that are left may take, once no fault comes any more and they are quick."""
LOOK_S = 0.2
PATIENCE_S = 60.0
"""A fault that the job cannot take for so long gives way to the next one. It is long enough for ranks that are all on one machine
to move to the other one in a calm moment."""
REPAIR_S = 10.0
"""After so long a folder can be written again, and a device that was lost has been exchanged."""
MANY = 5
"""Planned moves that were all refused: whatever refuses each of them is a fault."""
DEVICES = 8
POLICY = "extends: default\nlimits: {storm_migrations: 100000}\n"


@dataclass(frozen=True)
class Ended:
    """`exit_codes`: of the commands that were there at the end. `rows`: what struck, and what became of it; `events`: by name.

    `refused`: what planned moves were refused with; `not_struck`: faults that did not come, and why.
    `broken`: promises that were not kept.
    """

    exit_codes: tuple[int | None, ...]
    rows: tuple[Row, ...]
    events: dict[str, int]
    differences: tuple[str, ...]
    leaks: tuple[str, ...]
    broken: tuple[str, ...]
    held: str
    refused: dict[str, int]
    not_struck: dict[str, int]
    steps: int
    took_s: float

    @property
    def struck(self) -> dict[str, int]:
        return {row.kind: row.count for row in self.rows}

    @property
    def rungs(self) -> Counter[str]:
        return sum((row.rungs for row in self.rows), Counter())

    @property
    def good(self) -> bool:
        moves = self.struck.get(d.PLANNED) or sum(self.refused.values()) < MANY
        well = not (self.differences or self.leaks or self.broken)
        return set(self.exit_codes) == {0} and well and bool(self.struck and moves)

    def told(self) -> str:
        lines = [
            f"exit codes {self.exit_codes}, {self.steps} steps in {self.took_s:.0f} s",
            table(self.rows),
            f"events: {', '.join(f'{name} {count}' for name, count in sorted(self.events.items()))}",
            *(f"refused {count} times: {reason}" for reason, count in sorted(self.refused.items())),
            *(f"did not strike, {count} times: {why}" for why, count in sorted(self.not_struck.items())),
            self.held,
        ]
        return "\n".join([*filter(None, lines), *self.differences, *self.leaks, *self.broken])


def soak(folder: Path, shape: Shape, seconds: float, seed: int, most: int = 1_000_000) -> Ended:
    """Strikes a job in `folder`, a new one with a short path, for so long, and compares it with an undisturbed run.

    `most`: faults, after which it is left alone.
    """
    epochs = str(int(seconds / STEP_S) // STEPS_PER_EPOCH + 1)
    with Commands(folder) as cli, _network(shape) as network:
        job = _Job(cli, shape, epochs, random.Random(f"{seed}/{shape.name}"), network)
        began_s = time.monotonic()
        job.run(seconds, most)
        took_s = time.monotonic() - began_s
        codes = tuple(command.returncode for command in job.fleet.commands)
    (folder / "reference").mkdir()
    reference = plain(
        *(folder / "reference", SCRIPT, epochs, shape.mode.how),
        ranks=shape.world_size,
        environment={**HANDS_BACK, "STEP_S": "0"},
        limit_s=END_S,
    )
    different = tuple(differences(reference, job.fleet.out, shape.world_size))
    events = job.events()
    leaks = (*job.held.leaks(), *_checkpoints_left(folder))
    incidents = [e for e in events if e["name"] == "incident"]
    broken = tuple(f"{e['promised']}, but: {e['reason']}" for e in incidents) if shape.mode.waits else ()
    named = Counter(
        e["name"] for e in events if e["name"] not in ("progress", "rank_report", "phase", "log", "coverage")
    )
    steps = int(epochs) * STEPS_PER_EPOCH
    struck = tuple(rows(job.strikes, events))
    return Ended(
        codes,
        struck,
        named,
        different,
        leaks,
        broken,
        job.held.told(),
        dict(job.refused),
        dict(job.not_struck),
        steps,
        took_s,
    )


@contextmanager
def _network(shape: Shape) -> Iterator[Network | None]:
    if shape.cuts:
        with Network(shape.machines) as network:
            yield network
    else:
        yield None


def _checkpoints_left(folder: Path) -> list[str]:
    """A run that has succeeded needs none."""
    return [f"{path} is left" for path in sorted((folder / "checkpoints").iterdir()) if path.is_dir()]


class _Job:
    def __init__(
        self, cli: Commands, shape: Shape, epochs: str, chance: random.Random, network: Network | None
    ) -> None:
        self._cli, self._shape, self._chance, self._network = cli, shape, chance, network
        folder = cli.folder
        self._hurry, temporary, orders = folder / "hurry", folder / "tmp", folder / "orders"
        for made in (temporary, orders, folder / "checkpoints"):
            made.mkdir()
        (folder / "jit").symlink_to(folder / "checkpoints")
        self.fleet = Fleet(
            cli,
            *shape.options,
            *self._with_devices(),
            "--quiet",
            spares=[shape.mode.spares] * shape.machines,
            script=SCRIPT,
            arguments=[epochs, shape.mode.how],
            local_ranks=shape.ranks,
            network=network,
            **HANDS_BACK,
            STEP_S=str(STEP_S),
            HURRY=str(self._hurry),
            ORDERS=str(orders),
            TMPDIR=str(temporary),
            TORCHINDUCTOR_CACHE_DIR=str(folder / "cache"),  # torch makes it, and leaves it
        )
        self.held = Held(temporary)
        self.strikes: list[Strike] = []
        self.refused: Counter[str] = Counter()
        self.not_struck: Counter[str] = Counter()
        self._hand = Hand(self.fleet, folder, orders, network, self._torchrelay, self._refuse)
        self._machines = Machines(self.fleet, self._hand)
        self._before: list[d.Struck] = []
        self._latest: list[int] = []
        """Ranks that were struck, or lost with a machine, since the job was asked: its next answer says how far they had come."""
        self._has_begun = False
        self._led_since_s = time.monotonic()
        self._since_progress = self._restarts = 0
        self._progress_from: tuple[int, int] | None = None
        """Restarts, and the furthest boundary of any rank, when the job was first asked after the latest strike."""
        self._spoilt_s = 0.0
        self._quarantined_s: float | None = None

    def run(self, seconds: float, most: int) -> None:
        """Until the job has ended, or has had more time than it can need. Faults come from when it trains."""
        end_s = time.monotonic() + seconds + END_S
        until_s = end_s
        fault = self._draw()
        next_s = time.monotonic() + fault.pause_s
        while self._machines.run and (now_s := time.monotonic()) < end_s:
            if self._has_begun and until_s == end_s:
                until_s = now_s + seconds
            over = now_s >= until_s or len(self.strikes) >= most
            self._tend(now_s, over)
            if over:
                self._hurry.touch()
            elif self._machines.one_is_out or now_s < next_s:
                pass
            elif self._strike(fault) or now_s >= next_s + PATIENCE_S:
                fault = self._draw()
                next_s = time.monotonic() + fault.pause_s
            time.sleep(LOOK_S)

    def events(self) -> list[dict[str, Any]]:
        return merged(self._machines.told())

    def _draw(self) -> d.Fault:
        return d.draw(self._chance, self._shape.kinds, self._shape.world_size, self._shape.machines)

    def _with_devices(self) -> list[str]:
        """A fake machine, on which devices can be lost; they may be, as often as they are exchanged."""
        if d.DEVICE not in self._shape.kinds:
            return []
        timeline, policy = self._cli.folder / "timeline.json", self._cli.folder / "policy.yaml"
        timeline.write_text(json.dumps({"gpus": DEVICES, "episodes": []}))
        policy.write_text(POLICY)
        return [f"--replay={timeline}", f"--health-policy={policy}"]

    def _tend(self, now_s: float, over: bool) -> None:
        """What a person does: a machine is started again, a folder can be written again, a device is exchanged."""
        self._machines.tend(now_s)
        if self._hand.folder_is_spoilt and (over or now_s >= self._spoilt_s + REPAIR_S):
            self._hand.mend_folder()
        if self._quarantined_s is not None and (over or now_s >= self._quarantined_s + REPAIR_S):
            self._exchange_devices()

    def _exchange_devices(self) -> None:
        """Ask again at the next look where nothing is in quarantine yet, or the controller does not answer now."""
        if (status := self._ask()) is None:
            return
        subjects = [kept["subject"] for kept in status["quarantine"]]
        answers = [self._torchrelay("quarantine", "clear", subject, "--reason=exchanged") for subject in subjects]
        if answers and not any(answer.returncode for answer in answers):
            self._quarantined_s = None

    def _strike(self, fault: d.Fault) -> bool:
        """Whether it was done with the fault; if not, it is tried again soon."""
        status = self._ask()
        if status is None and self._shape.mode.waits:
            return False
        seen = self._see(status)
        counts = Counter(s.kind for s in self.strikes)
        if not self._has_begun or d.why_not_now(fault, seen, self._before, counts, self._shape.mode.waits):
            return False
        if self._is_too_much(fault, seen):
            return False
        ranks, lost_before = self._machines.ranks(status), self._machines.gone_on()
        strike = Strike(fault.kind, fault.target, time.time(), max(seen.boundaries, default=-1))
        try:
            if fault.kind == d.SPARE:
                spares = status["spares"]["processes"] if status is not None else ()
                self._hand.strike_spare(fault, [s["pid"] for s in spares])
            else:
                self._hand.strike(fault, ranks)
        except NotStruckError as e:
            self.not_struck[f"{fault.kind}: {e}"] += 1
            return fault.kind in (d.PLANNED, *d.ORDERED)
        self.strikes.append(strike)
        self._note(fault, status, len(ranks))
        if fault.kind in d.OF_MACHINES:
            self._machines.lost(fault, lost_before)
        return True

    def _is_too_much(self, fault: d.Fault, seen: d.Seen) -> bool:
        """Together with what is out of order already."""
        if fault.kind in d.OF_MACHINES:
            return self._hand.folder_is_spoilt  # machines agree there on who goes on
        if fault.kind == d.CONTROLLER and self._shape.machines > 1:
            return min(seen.boundaries, default=0) < 1  # nobody could take over while ranks are to enter
        return fault.kind == d.DEVICE and self._quarantined_s is not None

    def _note(self, fault: d.Fault, status: dict[str, Any] | None, ranks: int) -> None:
        print(f"{time.strftime('%H:%M:%S')} {fault.kind} {fault.target} {fault.place}".rstrip(), flush=True)
        now_s = time.monotonic()
        if fault.may_cost:
            self._since_progress += 1
            self._progress_from = None
        if fault.kind in d.OF_MACHINES and status is not None:
            self._latest += [r["rank"] for r in status["ranks"] if r["node"].partition("-")[0] == f"n{fault.target}"]
        elif fault.kind in (d.HALF, d.ALL):
            half = max(ranks // 2, 1)
            self._latest += [(fault.target + n) % ranks for n in range(half if fault.kind == d.HALF else ranks)]
        elif fault.may_cost and fault.kind != d.CONTROLLER:
            self._latest.append(fault.target)
        if fault.kind == d.CONTROLLER:
            self._led_since_s = now_s
        if fault.kind == d.FOLDER:
            self._spoilt_s = now_s
        if fault.kind == d.DEVICE:
            self._quarantined_s = now_s

    def _see(self, status: dict[str, Any] | None) -> d.Seen:
        """What the job says of itself, and looks at what its parts hold if nothing is under way."""
        led_s = time.monotonic() - self._led_since_s
        if status is None:
            return d.Seen(False, False, (), 0, led_s, self._since_progress)
        boundaries = [r["boundary"] for r in status["ranks"]]
        if self._restarts != len(status["restarts"]):
            self._restarts = len(status["restarts"])
            self._before.clear()  # steps may be done again
        self._before += [d.Struck(rank, max(boundaries)) for rank in self._latest]
        self._latest.clear()
        self._count_progress(len(status["restarts"]), boundaries)
        level, spares = Level(status["protection"]), status["spares"]
        whole = spares["ready"] >= spares["wanted"] and all(r["state"] == "running" for r in status["ranks"])
        if whole:
            for command in self.fleet.commands:
                self.held.look(command.pid, len(self.strikes))
        promised = level.promises and min(boundaries) > 0
        self._has_begun = self._has_begun or promised or (not self._shape.mode.waits and min(boundaries) > 0)
        wholly = whole and (level is Level.PROTECTED or not self._shape.mode.waits)
        return d.Seen(
            promised, wholly and not self._machines.one_is_out, boundaries, spares["ready"], led_s, self._since_progress
        )

    def _count_progress(self, restarts: int, boundaries: list[int]) -> None:
        """All have done a step of their own since the latest strike, in the processes that there are now."""
        if min(boundaries) < 1:
            return
        if self._progress_from is None or self._progress_from[0] != restarts:
            self._progress_from = (restarts, max(boundaries))
        elif min(boundaries) > self._progress_from[1]:
            self._since_progress = 0

    def _refuse(self, why: str) -> None:
        self.refused[why] += 1

    def _ask(self) -> dict[str, Any] | None:
        """None where nobody answers now."""
        for inside in self._machines.doors(self._network):
            answer = self._cli.ask(*inside, words=("status", "--json"))
            for line in answer.stdout.splitlines() if not answer.returncode else ():
                status: dict[str, Any] = json.loads(line)
                if status["ranks"]:
                    return status
        return None

    def _torchrelay(self, *words: str) -> Any:
        inside = next(iter(self._machines.doors(self._network)), [])
        return self._cli.ask(*inside, words=words)
