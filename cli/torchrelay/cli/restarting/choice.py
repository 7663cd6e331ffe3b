"""A job cannot go on in its processes: from what is it started anew, or why is that of no use? Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from torchrelay.protocol.words.signals import PROGRAM_SIGNALS

JIT_CHECKPOINT = "jit-checkpoint"
EARLIER_CHECKPOINT = "earlier-checkpoint"
SCRIPT = "script"
MAX_RESTARTS_AT_STEP = 2
"""More in a row at the same step would meet the same end."""


@dataclass(frozen=True)
class Saved:
    """A just-in-time checkpoint on disk, of the boundary `step`."""

    directory: str
    step: int


@dataclass(frozen=True)
class Fall:
    """Why the job cannot go on. `by_script`: the script itself has failed, no process was taken from it.

    `step`: the furthest boundary that any rank had reached, -1 before the first one. `saved`: what the ranks held, or why it
    could not be saved is in `refused`.
    """

    reason: str
    exit_code: int
    step: int
    by_script: bool = False
    saved: Saved | None = None
    refused: str = ""
    at_step: int = 1
    """How often these processes have lost the rank there."""


@dataclass(frozen=True)
class RestartChoice:
    """The decision about a restart. `rung` is empty if the job is not started again, because of `reason`.

    `tried`: the rungs above it, and why not. `saved`: what all ranks enter from; None: the script runs from its beginning.
    """

    rung: str
    reason: str
    tried: tuple[str, ...] = ()
    saved: Saved | None = None


def choose(
    fall: Fall, before: Sequence[Fall], most: int, was_asked: bool, earlier: Sequence[Saved], broken: Sequence[str] = ()
) -> RestartChoice:
    """Choose what the job is started anew from.

    `before`: falls after each of which the job was started again. `most`, `was_asked`: --max-restarts, and whether it was given.
    `earlier`: checkpoints of before, oldest first. `broken`: folders from which ranks could not enter.
    """
    if why := _refusal(fall, before, most, was_asked):
        return RestartChoice("", why)
    if fall.by_script:
        return RestartChoice(SCRIPT, f"{SCRIPT}: runs from its beginning, as with torchrun", ())
    tried = []
    if fall.saved is not None and fall.saved.directory not in broken:
        taken = f"{JIT_CHECKPOINT}: all ranks enter at step {fall.saved.step}, from {fall.saved.directory}"
        return RestartChoice(JIT_CHECKPOINT, taken, (), fall.saved)
    tried.append(f"{JIT_CHECKPOINT}: {fall.refused or 'nothing was saved'}")
    for saved in reversed(earlier):
        if saved.directory not in broken:
            taken = f"{EARLIER_CHECKPOINT}: all ranks enter at step {saved.step}, from {saved.directory}"
            return RestartChoice(EARLIER_CHECKPOINT, taken, tuple(tried), saved)
    tried.append(f"{EARLIER_CHECKPOINT}: there is none{' that can be used' if earlier else ''}")
    taken = f"{SCRIPT}: runs from its beginning, and finds what it has saved itself"
    return RestartChoice(SCRIPT, taken, tuple(tried))


def _refusal(fall: Fall, before: Sequence[Fall], most: int, was_asked: bool) -> str:
    """Return why nothing is to be tried; empty otherwise."""
    if most == 0:
        return "it is not to be started again (--max-restarts 0)"
    again = "which would come again: with --max-restarts N it is started again all the same"
    if not was_asked and fall.by_script:
        return f"the script has failed by itself, {again}"
    if not was_asked and fall.step < 1 and fall.exit_code - 128 in PROGRAM_SIGNALS:
        return f"the program ended itself before its first step, {again}"
    # A job that has come past the step since has met something else there. A script that finds its own checkpoint counts anew, too.
    in_a_row = takewhile(lambda f: f.step == fall.step, reversed(before))
    at_step = sum(f.at_step for f in in_a_row) + fall.at_step
    if at_step > MAX_RESTARTS_AT_STEP:
        where = f"at step {fall.step}" if fall.step >= 0 else "before the first step"
        return f"it has come to an end {where} {at_step} times: the script or its data will meet the same end again"
    if len(before) >= most:
        return f"it has been started again {len(before)} time{'s' * (len(before) > 1)} (--max-restarts {most})"
    return ""
