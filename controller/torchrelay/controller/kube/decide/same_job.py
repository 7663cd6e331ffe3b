"""There is a TrainingJob of this name already: is it of the job whose pods are here, or of an earlier one?"""

from __future__ import annotations

from dataclasses import dataclass

ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class FoundResource:
    """The resource that is there: its phase, and the uid of the workload that it was made for; empty for bare pods."""

    phase: str
    workload: str


@dataclass(frozen=True)
class Here:
    """The job whose pods are here. `trains`: it has begun before, under this controller or another one.

    `follows`: one of its name has ended under this controller.
    """

    workload: str
    trains: bool
    follows: bool


@dataclass(frozen=True)
class SameJobVerdict:
    same: bool
    reason: str


def judge_same_job(found: FoundResource, here: Here) -> SameJobVerdict:
    """Of an earlier job nothing counts any more: neither its number of spares nor what it has lost."""
    if here.trains:
        return SameJobVerdict(True, "its processes have trained already")
    if here.follows:
        return SameJobVerdict(False, "the job of this name before it has ended")
    if found.workload and here.workload and found.workload != here.workload:
        return SameJobVerdict(False, "the job of this name before it was of another workload")
    if found.phase in ENDED:
        return SameJobVerdict(False, f"the job of this name before it has {found.phase.lower()}")
    return SameJobVerdict(True, "it is of the same workload, and has not ended")
