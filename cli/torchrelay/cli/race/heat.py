"""One run of one arm: it is started, struck, watched and ended; nothing that it started outlives it."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from torchrelay.cli.drill.recording import RecordingSettings, variables
from torchrelay.cli.race.arms import Arm, ArmSetting, Part
from torchrelay.cli.race.faults import RaceFault, RaceFaultKind
from torchrelay.cli.race.step_log import RankLog, StepLogs
from torchrelay.cli.struck_runs import process
from torchrelay.protocol.names import ENV_NOTIFY, ENV_SECRET

POLL_S = 0.02
SETTLED_STEPS = 3
"""A fault waits until its rank has done so many steps since the one before, and one that nobody had done then: what is not up
again cannot be lost."""
LATE_S = 3.0
"""How long the other commands of an arm may take once one of them has ended well. The training is over then, but one with a
stopped rank never ends, and a replica group that comes too late to find the others trains once more from the beginning."""
_NOT_INHERITED = (ENV_SECRET, ENV_NOTIFY, "TORCHRELAY_STATE_DIR", "RANK", "WORLD_SIZE")
_SIGNALS = {
    RaceFaultKind.KILL: signal.SIGKILL,
    RaceFaultKind.NODE: signal.SIGKILL,
    RaceFaultKind.STOP: signal.SIGSTOP,
    RaceFaultKind.PLANNED: signal.SIGTERM,
}


@dataclass(frozen=True)
class Struck:
    """A fault that has struck. `due_s`: when it was to strike, seconds since the first step; `unix_s`: when it did."""

    fault: RaceFault
    due_s: float
    unix_s: float


@dataclass
class Heat:
    """A run of an arm. `ended`: empty if the script came to its end, else why not.

    `missed`: faults that found nothing to strike.
    """

    wall_s: float
    ended: str
    logs: list[RankLog]
    struck: list[Struck]
    missed: list[RaceFault]


@dataclass
class _Running:
    part: Part
    process: subprocess.Popen[bytes]
    below: list[psutil.Process] = field(default_factory=list)


class _Race:
    """An arm while it runs."""

    def __init__(self, arm: Arm, setting: ArmSetting, due: Sequence[tuple[RaceFault, float]]) -> None:
        self.arm = arm
        self.setting = setting
        self.logs = StepLogs(arm.logs(setting))
        self.due = list(due)
        self.struck: list[Struck] = []
        self.running: list[_Running] = []
        self._at: dict[int, int] = {}
        """By rank, how many steps it had logged when the last fault struck."""
        self._furthest = 0
        """The highest number of a step by then."""
        self._asked: list[subprocess.Popen[bytes]] = []

    def start(self, stack: ExitStack) -> str:
        """Start the commands. Return empty, or why one could not be started."""
        for part in self.arm.parts(self.setting):
            if part.record is not None:
                part.record.mkdir(parents=True)
            stdout = stack.enter_context((self.setting.folder / f"{part.name}.stdout").open("wb"))
            stderr = stack.enter_context((self.setting.folder / f"{part.name}.stderr").open("wb"))
            try:
                started = subprocess.Popen(
                    part.argv,
                    cwd=self.setting.cwd,
                    env=_environment(part),
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,
                )
            except OSError as e:
                return f"{part.name} cannot be started: {e}"
            self.running.append(_Running(part, started))
        return ""

    def look(self) -> None:
        self.logs.read()
        if self.due and self._began_s() is not None and self._is_time(*self.due[0]):
            fault, due_s = self.due.pop(0)
            self._strike(fault, due_s)

    def _began_s(self) -> float | None:
        return min((log.steps[0].unix_s for log in self.logs.logs if log.steps), default=None)

    def _is_time(self, fault: RaceFault, due_s: float) -> bool:
        began_s = self._began_s()
        if began_s is None or time.time() < began_s + due_s:
            return False
        logs = self.logs.logs
        if any(log.end for log in logs):
            return False
        return all(
            len(logs[rank].steps) >= self._at.get(rank, 0) + SETTLED_STEPS
            and (logs[rank].steps[-1].number or math.inf) > self._furthest
            and _can_be_struck(logs[rank])
            for rank in fault.ranks
        )

    def _strike(self, fault: RaceFault, due_s: float) -> None:
        logs = self.logs.logs
        if fault.kind is RaceFaultKind.PLANNED and self.arm.moves_by_command:
            move = (sys.executable, "-m", "torchrelay.cli", "migrate", f"--rank={fault.ranks[0]}", "--no-wait")
            with (self.setting.folder / "migrate").open("ab") as said:
                environment = {**os.environ, "TORCHRELAY_STATE_DIR": str(self.setting.state)}
                self._asked.append(subprocess.Popen(move, env=environment, stdout=said, stderr=said))
        else:
            for rank in fault.ranks:
                with suppress(ProcessLookupError):
                    os.kill(logs[rank].steps[-1].process, _SIGNALS[fault.kind])
        self.struck.append(Struck(fault, due_s, time.time()))
        self._at = {rank: len(log.steps) for rank, log in enumerate(logs)}
        self._furthest = max(step.number or 0 for log in logs for step in log.steps)

    def workers(self) -> list[_Running]:
        return [r for r in self.running if r.part.record is not None]

    def lost_service(self) -> str:
        """Return the name of a service that has ended, without which the others would wait for ever; empty if all are there."""
        services = (r for r in self.running if r.part.record is None)
        return next((r.part.name for r in services if r.process.poll() is not None), "")

    def end(self) -> None:
        """End the commands first, which end what they have started; then whatever is left."""
        for asked in self._asked:
            with suppress(subprocess.TimeoutExpired):
                asked.wait(process.END_S)
            asked.kill()
        for r in self.running:
            with suppress(psutil.NoSuchProcess):
                r.below = psutil.Process(r.process.pid).children(recursive=True)
            if r.process.poll() is None:
                for child in r.below:  # a stopped one would be waited for
                    with suppress(psutil.NoSuchProcess):
                        child.send_signal(signal.SIGCONT)
                r.process.terminate()
        for r in self.running:
            with suppress(subprocess.TimeoutExpired):
                r.process.wait(process.END_S)
            for child in r.below:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            with suppress(ProcessLookupError):
                os.killpg(r.process.pid, signal.SIGKILL)
            r.process.wait()
            psutil.wait_procs(r.below, process.END_S)


def run(arm: Arm, setting: ArmSetting, due: Sequence[tuple[RaceFault, float]], limit_s: float) -> Heat:
    """Run an arm. `due`: faults, and when each strikes, in seconds since the arm's first step. Makes `setting.folder`."""
    setting.cwd.mkdir(parents=True, exist_ok=True)
    race = _Race(arm, setting, due if arm.is_struck else ())
    began_s = time.monotonic()
    with ExitStack() as stack:
        try:
            why = race.start(stack)
            ended, over_s = (why, began_s) if why else _wait(race, began_s + limit_s)
            wall_s = over_s - began_s
            over_unix_s = time.time() - (time.monotonic() - over_s)
        finally:
            race.end()
    race.logs.read()
    for log in race.logs.logs:
        log.steps = [step for step in log.steps if step.unix_s <= over_unix_s]
    if not ended and not any(log.end for log in race.logs.logs):
        ended = "no rank came to the end of the script"
    return Heat(wall_s, ended, race.logs.logs, race.struck, [fault for fault, _ in race.due])


def _wait(race: _Race, end_s: float) -> tuple[str, float]:
    """Wait for the end. Return why it did not end well, empty if it did; and when training was over, on the monotonic clock."""
    well_s: float | None = None
    while (now_s := time.monotonic()) < end_s:
        race.look()
        if lost := race.lost_service():
            return f"{lost} ended before the training", now_s
        left = [r for r in race.workers() if r.process.poll() is None]
        codes = [r.process.returncode for r in race.workers() if r.process.returncode is not None]
        if 0 in codes:
            well_s = well_s or now_s
            if not left or now_s > well_s + LATE_S:
                return "", well_s
        elif not left:
            return f"exit code {codes[0]}", now_s
        with suppress(subprocess.TimeoutExpired):
            left[0].process.wait(POLL_S)
    return "it had not ended at its time limit", now_s


def _can_be_struck(log: RankLog) -> bool:
    """Return whether the process that did the last step is there, and runs."""
    if not log.steps:
        return False
    try:
        status = psutil.Process(log.steps[-1].process).status()
    except psutil.NoSuchProcess:
        return False
    return status not in (psutil.STATUS_ZOMBIE, psutil.STATUS_STOPPED, psutil.STATUS_DEAD)


def _environment(part: Part) -> dict[str, str]:
    environment = {k: v for k, v in os.environ.items() if k not in _NOT_INHERITED}
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    environment |= part.variables
    if part.record is not None:
        environment |= variables(RecordingSettings(str(part.record), times_only=True), environment)
    return environment


def said(folder: Path) -> str:
    """Return the last lines that the arm's commands printed, to find the reason."""
    return "\n".join(process.tail(path, 8) for path in sorted(folder.glob("*.stderr")))
