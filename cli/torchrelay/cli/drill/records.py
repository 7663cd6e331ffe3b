"""What the recorder has written, and how two runs are compared by it. Pure but for reading the files.

A line is what one optimizer step of one rank has left, as digests by part. Steps have no numbers: a run with faults has to go
through the same contents in the same order as the undisturbed run, except that steps may be done again, that a lost rank may
not have written its last one, and that a process which takes over a rank may come in further on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Parts = Mapping[str, str]
"""Name of a part of the state (parameters, optimizer state, ...) -> its digest."""

PARAMETERS = "parameters"
CERTAIN = 2
"""After so many unknown contents in a row a process that was right before has certainly computed something else."""
CERTAIN_FROM_THE_START = 8
"""A process that takes over a rank may have some that mean nothing, before it has the tensors of its rank."""


@dataclass(frozen=True)
class Line:
    """One step. `entered_s`, `left_s`: when the recorder began and ended to look, on the clock of the machine."""

    process: int
    parts: Parts
    entered_s: float = 0.0
    left_s: float = 0.0
    memory_bytes: int = 0


@dataclass
class Record:
    """The steps of one rank, over all processes that held it. `end`: what was left at the script's end; None if not recorded.

    `stopped`: the recorder has ended the script early. `unrecorded`: why it gave up, empty if it did not.
    """

    lines: list[Line] = field(default_factory=list)
    end: Parts | None = None
    stopped: bool = False
    unrecorded: str = ""
    memory_bytes: int = 0


def read(folder: Path, ranks: int) -> list[Record]:
    """Read the record of each rank; empty if nothing was written. A line that is not whole is left out."""
    return [_read(folder / f"rank-{rank}.jsonl") for rank in range(ranks)]


def _read(path: Path) -> Record:
    record = Record()
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return record
    for text in data[: data.rfind(b"\n") + 1].splitlines():
        _take(record, json.loads(text))
    return record


def _take(record: Record, line: Mapping[str, Any]) -> None:
    record.memory_bytes = max(record.memory_bytes, line.get("memory_bytes", 0))
    if "step" in line:
        record.lines.append(
            Line(line["process"], line["step"], line["entered_s"], line["left_s"], line["memory_bytes"])
        )
        record.end = None
        record.stopped = False
    elif "end" in line:
        record.end = line["end"]
    elif "stopped" in line:
        record.stopped = True
    elif "unrecorded" in line:
        record.unrecorded = line["unrecorded"]


# How two undisturbed runs are compared.


@dataclass(frozen=True)
class RunComparison:
    """Two runs compared. `judged`: parts that are the same in all steps of all ranks.

    `differs`: for each other part, where it differs first.
    """

    judged: tuple[str, ...]
    differs: Mapping[str, str]

    @property
    def is_deterministic(self) -> bool:
        """Return whether the parameters are the same. Only that matters."""
        return PARAMETERS in self.judged


def agreement(one: Sequence[Record], two: Sequence[Record]) -> RunComparison:
    """Compare two undisturbed runs of the same script. Parts without any line agree on nothing."""
    names = dict.fromkeys(name for record in one for line in record.lines for name in line.parts)
    differs: dict[str, str] = {}
    for rank, (a, b) in enumerate(zip(one, two, strict=True)):
        for name in names:
            place = _first_difference(a, b, name)
            if place and name not in differs:
                differs[name] = f"rank {rank}, {place}"
    return RunComparison(tuple(name for name in names if name not in differs), differs)


def _first_difference(a: Record, b: Record, name: str) -> str:
    for number, (x, y) in enumerate(zip(a.lines, b.lines), 1):
        if x.parts.get(name) != y.parts.get(name):
            return f"step {number}"
    if len(a.lines) != len(b.lines):
        return f"{len(a.lines)} steps in the first run, {len(b.lines)} in the second"
    if (a.end or {}).get(name) != (b.end or {}).get(name):
        return "at the script's end"
    return ""


# How a run that was struck is compared with an undisturbed one.


@dataclass(frozen=True)
class Followed:
    """How far a rank has followed the undisturbed run. `steps`: as of its last known content.

    `unknown`: what the lines since then have that the undisturbed run has not, in words; the first one first. `certain`: there
    are so many that they cannot be what a joiner has computed on the way in, before it had the tensors of its rank.
    """

    steps: int
    unknown: tuple[str, ...] = ()
    certain: bool = False


def follow(reference: Record, record: Record, judged: Sequence[str]) -> Followed:
    """Find how far a rank has followed the undisturbed run.

    Content decides: if all that is judged is the same as after a step of the undisturbed run, the rank is at that step.
    """
    contents = [_content(line, judged) for line in reference.lines]
    places: dict[tuple[str, ...], list[int]] = {}
    for number, content in enumerate(contents, 1):
        places.setdefault(content, []).append(number)
    steps = 0
    process = -1
    in_a_row = 0
    unknown: list[str] = []
    were_right: set[int] = set()
    for line in record.lines:
        content = _content(line, judged)
        found = places.get(content)
        if found is None:
            in_a_row = in_a_row + 1 if line.process == process else 1
            process = line.process
            unknown.append(_unknown(reference, line, steps, judged))
            continue
        steps = _place(found, steps)
        unknown = []
        in_a_row = 0
        were_right.add(line.process)
    enough = CERTAIN if process in were_right else CERTAIN_FROM_THE_START
    return Followed(steps, tuple(unknown), in_a_row >= enough)


def _content(line: Line, judged: Sequence[str]) -> tuple[str, ...]:
    return tuple(line.parts.get(name, "") for name in judged)


def _place(found: Sequence[int], steps: int) -> int:
    """Choose the step: the next one if possible, else one that is done again, else a later one, where a new process came in."""
    if steps + 1 in found:
        return steps + 1
    return max((number for number in found if number <= steps), default=found[0])


def _unknown(reference: Record, line: Line, steps: int, judged: Sequence[str]) -> str:
    number = steps + 1
    if number > len(reference.lines):
        return f"step {number}: a step more than the undisturbed run has"
    expected = reference.lines[number - 1].parts
    other = [name for name in judged if line.parts.get(name) != expected.get(name)]
    return f"step {number}: other {', '.join(other)}"


def differences(reference: Sequence[Record], other: Sequence[Record], judged: Sequence[str]) -> list[str]:
    """Return the differences of a run that has come to its end, in words.

    Empty if every rank has gone through the same steps to the same end.
    """
    found = []
    for rank, (ours, theirs) in enumerate(zip(reference, other, strict=True)):
        if theirs.unrecorded:
            found.append(f"rank {rank}: not recorded: {theirs.unrecorded}")
            continue
        followed = follow(ours, theirs, judged)
        if followed.unknown:
            found.append(f"rank {rank}, {followed.unknown[0]}")
        elif followed.steps != len(ours.lines):
            found.append(f"rank {rank}: {followed.steps} steps and not {len(ours.lines)}")
        elif ours.end is not None:
            found += [f"rank {rank}, at the script's end: {text}" for text in _ends(ours.end, theirs.end, judged)]
    return found


def _ends(ours: Parts, theirs: Parts | None, judged: Iterable[str]) -> list[str]:
    if theirs is None:
        return ["not reached"]
    return [f"other {name}" for name in judged if name in ours and name in theirs and ours[name] != theirs[name]]


def wrong_before_it_ended(reference: Sequence[Record], other: Sequence[Record], judged: Sequence[str]) -> list[str]:
    """Return where a run that has not come to its end had certainly computed something else."""
    found = []
    for rank, (ours, theirs) in enumerate(zip(reference, other, strict=True)):
        followed = follow(ours, theirs, judged)
        if followed.certain:
            found.append(f"rank {rank}, {followed.unknown[0]}")
    return found


# How seconds are counted.


def step_seconds(record: Record) -> list[float]:
    """Return how long each step took, without the recorder's time. The first ones, and changes of process, are left out."""
    pairs = [(a, b) for a, b in zip(record.lines, record.lines[1:]) if a.process == b.process]
    return [b.entered_s - a.left_s for a, b in pairs[1:]]
