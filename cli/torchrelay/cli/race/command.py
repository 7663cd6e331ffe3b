"""`torchrelay bench race`, from its options to its files."""

from __future__ import annotations

import json
import math
import os
import random
import re
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from torchrelay.cli.display import narrate
from torchrelay.cli.display.teller import make_console
from torchrelay.cli.display.waiting import waiting
from torchrelay.cli.folders import working_folder
from torchrelay.cli.race import arms, heat, peers, picture, program, report, tuning
from torchrelay.cli.race.arms import Arm, ArmSetting, Part
from torchrelay.cli.race.faults import RaceFault, RaceFaultKind, draw
from torchrelay.cli.race.program import RacedProgram
from torchrelay.cli.race.results import ArmResult, as_json, judge, together
from torchrelay.cli.relay_score import provenance
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.machine.owned_folder import owned_folder

PORTS = range(20_000, 30_000)
CALIBRATION_STEPS = 24
CALIBRATION_EVERY = 4


@dataclass(frozen=True)
class RaceOptions:
    """The command line. `limit_s`: how long one run may take. `budget_s`: how long all may take, None: as long as it takes.

    `save_cost_s`: taken for what a save costs; None: it is measured. `page`: a page with a place for the results.
    `workdir`: what a user's script reads by relative paths; each run has a copy.
    """

    program: RacedProgram
    ranks: int
    spares: int
    faults: int
    kinds: tuple[RaceFaultKind, ...]
    seed: int
    repetitions: int
    arms: tuple[str, ...]
    out: Path
    limit_s: float
    budget_s: float | None = None
    save_cost_s: float | None = None
    page: Path | None = None
    workdir: Path = Path()


def race(options: RaceOptions) -> int:
    """Run all arms in turns and write the results. Return 0, or 1 if torchrelay did not end as the baseline did.

    Raises UserError.
    """
    signal.signal(signal.SIGTERM, _end)
    options.out.mkdir(parents=True, exist_ok=True)
    load_before = os.getloadavg()[0]
    with owned_folder("race") as made:
        held = _Held(options, make_console(sys.stderr), made / "work")
        if not options.program.is_demo:
            working_folder.copy(options.workdir, held.pristine)
        held.prepare()
        held.run()
    about = held.about(load_before)
    _write(options, held.results, about)
    ours = [r for r in held.results if r.arm == "torchrelay"]
    return 1 if any(r.ended or r.is_bitwise is False for r in ours) else 0


def _end(number: int, _frame: object) -> None:
    """End like Ctrl-C does: what is being run ends with this command."""
    raise SystemExit(128 + number)


@dataclass
class _Held:
    options: RaceOptions
    console: Console
    pristine: Path
    """A copy of the working folder that no script has run in."""
    arms: list[Arm] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    environments: dict[str, peers.Environment] = field(default_factory=dict)
    results: list[ArmResult] = field(default_factory=list)
    save_cost_s: float = 0.0
    checkpoint_every: int = program.NEVER
    commands: dict[str, str] = field(default_factory=dict)
    began_s: float = field(default_factory=time.monotonic)

    def tell(self, text: str) -> None:
        self.console.print(narrate.line(text))

    def prepare(self) -> None:
        """Find out which arms can be run."""
        for arm in arms.chosen(self.options.arms):
            why = self.options.program.why_not(arm.kind) or self._why_no_peer(arm)
            if why:
                self.left_out[arm.name] = why
                self.tell(f"{arm.name} is not run: {why}")
            else:
                self.arms.append(arm)

    def _why_no_peer(self, arm: Arm) -> str:
        if arm.peer is None or arm.peer.name in self.environments:
            return ""
        self.tell(f"installing {', '.join(arm.peer.packages)}")
        try:
            self.environments[arm.peer.name] = peers.install(
                arm.peer, self.options.out / "environments" / arm.peer.name
            )
        except peers.PeerUnavailable as e:
            return str(e)
        return ""

    def run(self) -> None:
        options = self.options
        faults = draw(options.seed, options.faults, options.ranks, options.kinds)
        if options.program.is_demo and any(arm.kind in (program.CHECKPOINT, program.NVRX) for arm in self.arms):
            self.save_cost_s = self._calibrate() if options.save_cost_s is None else options.save_cost_s
        with waiting(self.console, "runs", options.repetitions * len(self.arms)) as are_done:
            for repetition in range(1, options.repetitions + 1):
                self._repeat(repetition, faults, are_done)

    def _repeat(self, repetition: int, faults: Sequence[RaceFault], are_done: Callable[[int], None]) -> None:
        """Run each arm once. `are_done` is told how many of all runs are over."""
        before = (repetition - 1) * len(self.arms)
        baseline = self._heat(self.arms[0], repetition, (), ())
        are_done(before + 1)
        if baseline.result.ended or baseline.result.figures is None:
            last = heat.said(baseline.setting.folder)
            raise UserError(f"the undisturbed run failed, so there is nothing to race: {baseline.result.ended}\n{last}")
        training_s = baseline.result.figures.training_s
        step_s = baseline.result.figures.step_s
        due = [(fault, fault.at * training_s) for fault in faults]
        if self.save_cost_s and faults:
            between_s = training_s / len(faults)
            self.checkpoint_every = tuning.checkpoint_every(self.save_cost_s, between_s, step_s)
        weights = [log.end for log in baseline.heat.logs]
        for number, arm in enumerate(_in_turns(self.arms[1:], repetition), 2):
            if self._left_s() < baseline.result.wall_s:
                self.left_out[f"{arm.name}, repetition {repetition}"] = "no time was left"
            else:
                self._heat(arm, repetition, due, weights)
            are_done(before + number)

    def _left_s(self) -> float:
        budget_s = self.options.budget_s
        return math.inf if budget_s is None else budget_s - (time.monotonic() - self.began_s)

    def _calibrate(self) -> float:
        """Return how many seconds of training one save takes, as the script of the arm checkpoint says itself."""
        arm = next(arm for arm in arms.ARMS if arm.kind == program.CHECKPOINT)
        setting = replace(self._setting(arm, "calibration"), checkpoint_every=CALIBRATION_EVERY)
        setting = replace(setting, program=replace(self.options.program, steps=CALIBRATION_STEPS))
        heat.run(arm, setting, (), self.options.limit_s)
        output = (setting.folder / "torchrun.stdout").read_text(encoding="utf-8")
        found = re.search(r"a save took ([0-9.]+) s", output)
        if found is None:
            raise UserError(f"the script with checkpoints failed:\n{heat.said(setting.folder)}")
        self.tell(f"a save takes {found[1]} s of training")
        return float(found[1])

    def _setting(self, arm: Arm, name: str) -> ArmSetting:
        folder = self.options.out / "runs" / name
        shutil.rmtree(folder, ignore_errors=True)
        python = self.environments[arm.peer.name].python if arm.peer else arms.own_python()
        o = self.options
        return ArmSetting(o.program, o.ranks, o.spares, folder, python, self.checkpoint_every, _free_port())

    def _heat(self, arm: Arm, repetition: int, due: Sequence[tuple[RaceFault, float]], weights: Sequence[str]) -> _Heat:
        setting = self._setting(arm, f"{repetition}-{arm.name}")
        if not setting.program.is_demo:
            shutil.copytree(self.pristine, setting.cwd, symlinks=True)
            setting = replace(setting, program=setting.program.in_copy(self.options.workdir, setting.cwd))
        self.commands[arm.name] = "; ".join(self._shown(part, setting) for part in arm.parts(setting))
        ran = heat.run(arm, setting, due, min(self.options.limit_s, self._left_s()))
        result = judge(arm.name, repetition, ran, setting, weights)
        self.results.append(result)
        self.tell(report.told(result))
        return _Heat(ran, result, setting)

    def _shown(self, part: Part, setting: ArmSetting) -> str:
        """Return the command as it was started, without what is specific to this machine."""
        words = [f"{k}={v}" for k, v in part.variables.items()] + list(part.argv)
        text = shlex.join(words)
        for path, name in (
            (setting.python, "python"),
            (str(Path(setting.python).parent) + "/", ""),
            (str(setting.folder), "FOLDER"),
            (str(program.EXAMPLES), "examples"),
            (str(Path.cwd()) + "/", ""),
        ):
            text = text.replace(path, name)
        return text

    def about(self, load_before: float) -> report.About:
        o = self.options
        drawn = draw(o.seed, o.faults, o.ranks, o.kinds)
        what = f"the demo's GPT, {o.program.steps} steps" if o.program.is_demo else o.program.script.name
        versions = ", ".join(f"{name} {v}" for name, v in provenance.versions(()).items())
        machine = (
            f"{provenance.processors()} processors, on the CPU with gloo unless the script says otherwise; {versions}; "
            f"load {load_before:.1f} before and {os.getloadavg()[0]:.1f} at the end"
        )
        said = ", ".join(f"{f.name} at {100 * f.at:.0f} %" for f in drawn) or "none"
        faults = f"Faults of seed {o.seed}, in parts of the undisturbed training's time: {said}."
        settings = {arm.name: self._setting(arm, "shown") for arm in self.arms}
        return report.About(
            title=f"{what}, {o.ranks} ranks, {o.faults} faults, {o.repetitions} repetitions, medians",
            machine=machine,
            faults=faults,
            arms={arm.name: self._said_of(arm) for arm in self.arms},
            left_out=self.left_out,
            lines_changed={arm.name: o.program.lines_changed(arm.kind) for arm in self.arms},
            spares={arm.name: arm.spares(settings[arm.name]) for arm in self.arms},
            batch=program.BATCH if o.program.is_demo else 0,
        )

    def _said_of(self, arm: Arm) -> str:
        parts = [arm.settings]
        if arm.kind in (program.CHECKPOINT, program.NVRX) and self.save_cost_s:
            parts.append(
                f"a save took {self.save_cost_s:.3f} s of training, so one every {self.checkpoint_every} steps"
            )
        if arm.peer is not None:
            versions = self.environments[arm.peer.name].versions
            parts.append(", ".join(f"{name} {version}" for name, version in versions.items()))
        if arm.is_struck:
            parts.append(f"planned: {arm.notice}")
        return "; ".join(parts) + f". `{self.commands.get(arm.name, '')}`"


@dataclass(frozen=True)
class _Heat:
    heat: heat.Heat
    result: ArmResult
    setting: ArmSetting


def _in_turns(given: Sequence[Arm], repetition: int) -> list[Arm]:
    """Let each repetition begin with another arm, so that no arm always runs while the machine is at its best."""
    start = (repetition - 1) % max(len(given), 1)
    return [*given[start:], *given[:start]]


def _free_port() -> int:
    """Return a free port below Linux's ephemeral ports, so that no connection gets it by chance before its service binds it."""
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as s, suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port
    raise UserError("no port is free")


def _write(options: RaceOptions, results: Sequence[ArmResult], about: report.About) -> None:
    console = make_console(sys.stdout)
    found = together(results, arms.ARMS[0].name)
    for part in report.as_text(found, about):
        console.print(part, highlight=False, markup=False)
    record: Mapping[str, Any] = {
        "title": about.title,
        "machine": about.machine,
        "faults": about.faults,
        "arms": dict(about.arms),
        "left_out": dict(about.left_out),
        "lines_changed": dict(about.lines_changed),
        "runs": [as_json(r) for r in results],
    }
    (options.out / "race.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    text = report.as_markdown(found, about)
    (options.out / "race.md").write_text(text, encoding="utf-8")
    if options.page is not None:
        try:
            options.page.write_text(
                report.with_results(options.page.read_text(encoding="utf-8"), text), encoding="utf-8"
            )
        except (OSError, ValueError) as e:
            raise UserError(f"--page {options.page}: {e}") from e
    try:
        picture.draw(results, options.out / "race.png")
    except UserError as e:
        make_console(sys.stderr).print(narrate.line(str(e), "yellow"))
