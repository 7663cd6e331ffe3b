"""The cells: which rank of which program is struck how, when, and where in a step. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torchrelay.protocol.errors import UserError
from torchrelay.protocol.options.faults import INJECT_PHASES, MIGRATION_PHASES, FaultKind

CONTROLLER = FaultKind.CONTROLLER.value
PARTITION = FaultKind.PARTITION.value
"""Kinds of cells that are kinds of faults."""
JOINER = "joiner"
SECOND = "second"
"""A rank is killed, and in its migration the joiner too, or another rank; or, as CONTROLLER, the controller."""
RESPAWN = "respawn"
REFILL = "refill"
RESTART = "restart"
"""A rank is killed where no spare stands ready: its process is started again in its place; or two are, one after the other, with
one spare that is made anew; or all processes are started anew from the just-in-time checkpoint."""
KINDS = ("kill", "planned", "stop", JOINER, SECOND, PARTITION, CONTROLLER, RESPAWN, REFILL, RESTART)
FIRST = "first"
EPOCH = "epoch"
LAST = "last"
HEAD = "head"
STEP_PHASES = (*INJECT_PHASES, FIRST, EPOCH, LAST, HEAD)
"""A phase of `--inject`, or a step that is special, or the head of the loop."""
PLACES = ("logging", "evaluation", "saving")
"""Phases that only a program knows, by the names that it gives them: it strikes itself when it first comes there."""
PHASES = (*STEP_PHASES, *PLACES, *MIGRATION_PHASES)
"""What a cell can be called by."""

SECOND_KINDS = (JOINER, SECOND, CONTROLLER)
RUNGS = (RESPAWN, REFILL, RESTART)
"""Each needs options of its own."""
_OF_ONE_RANK = (*SECOND_KINDS, PARTITION, *RUNGS)
"""One rank of each entry is drawn."""
_NEWER = (PARTITION, CONTROLLER, *RUNGS)
"""Kinds that came when draws had been made: with the same seed all others are drawn in the same order as ever."""
_FEW_PHASES = ("backward", "gate", "after-step")
REFILL_APART_STEPS = 4
"""As many steps at least are between two losses: time to see that the first one is over, and to hold the program."""
_FIRST_LOSS = "backward"
_INJECTED_AS = {FIRST: "backward", EPOCH: "data", LAST: "after-step", HEAD: "forward"}
"""Where in its special step a cell strikes; HEAD belongs to planned moves, which have no phase."""
RANKS = ("first", "middle", "last")


class StruckProgram(Protocol):
    """A program, as far as its cells depend on it. `steps`: optimizer steps in a run; `epoch_step`: the first step of a later
    epoch, 0 if it has none; `phases`: those in which it can be struck; `places`: those of its own in which it strikes itself.
    """

    @property
    def name(self) -> str: ...
    @property
    def ranks(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def epoch_step(self) -> int: ...
    @property
    def phases(self) -> tuple[str, ...]: ...
    @property
    def places(self) -> tuple[str, ...]: ...
    @property
    def buddy_every(self) -> int: ...


@dataclass(frozen=True)
class Cell:
    """One fault of one program. `step` counts optimizer steps from 1; 0 if the program's own place decides.

    `other`: the rank that SECOND kills, too. REFILL kills `other` in the step `again`.
    """

    entry: str
    phase: str
    kind: str
    rank: int
    step: int
    other: int = -1
    again: int = 0

    @property
    def name(self) -> str:
        """Return the name, which is the same in every run with the same seed."""
        return f"{self.entry}/{self.phase}/{self.kind}/rank{self.rank}/step{self.step}"

    @property
    def in_place(self) -> bool:
        return self.phase in PLACES

    @property
    def faults(self) -> tuple[str, ...]:
        """Return the faults as `--inject` takes them, unless the cell is `in_place`."""
        if self.in_place:
            return (f"{self.kind}:rank={self.rank},phase={self.phase}",)
        if self.kind in SECOND_KINDS:
            struck = self.other if self.kind == SECOND else self.rank
            second = CONTROLLER if self.kind == CONTROLLER else "kill"
            first = f"kill:rank={self.rank},step={self.step},phase={_FIRST_LOSS}"
            return first, f"{second}:rank={struck},step={self.step},phase={self.phase}"
        if self.kind == REFILL:
            losses = (self.rank, self.step), (self.other, self.again)
            return tuple(f"kill:rank={rank},step={step},phase={self.phase}" for rank, step in losses)
        if self.kind in RUNGS:
            return (f"kill:rank={self.rank},step={self.step},phase={self.phase}",)
        phase = _INJECTED_AS.get(self.phase, self.phase)
        return (f"{self.kind}:rank={self.rank},step={self.step},phase={phase}",)

    @property
    def fault(self) -> str:
        """Return the fault in words."""
        how = f"{self.kind}: " if self.kind in RUNGS else ""
        return how + " and ".join(self.faults)


def ranks_of(entry: StruckProgram) -> dict[str, int]:
    """Return rank 0, the middle one and the last one. With two ranks there is no middle one."""
    ranks = {"first": 0, "middle": entry.ranks // 2, "last": entry.ranks - 1}
    return {name: r for name, r in ranks.items() if name != "middle" or r not in (0, entry.ranks - 1)}


def all_cells(
    entries: Iterable[StruckProgram], seed: int, phases: Sequence[str], kinds: Sequence[str], ranks: Sequence[str]
) -> list[Cell]:
    """Return every cell of the entries, in their order. Empty `phases`, `kinds`, `ranks`: all; `ranks` are names or numbers.

    Raises UserError for a phase, kind or rank that does not exist.
    """
    for option, given, known in (("--phase", phases, PHASES), ("--kind", kinds, KINDS)):
        unknown = [g for g in given if g not in known]
        if unknown:
            raise UserError(f"{option} {unknown[0]}: use one of {', '.join(known)}")
    for rank in ranks:
        if rank not in RANKS and not (rank.isascii() and rank.isdigit()):
            raise UserError(f"--rank {rank}: give a number, or one of {', '.join(RANKS)}")
    cells = []
    for entry in entries:
        for kind in KINDS:
            for phase in _phases(entry, kind):
                if (not kinds or kind in kinds) and (not phases or phase in phases):
                    struck = _ranks(entry, ranks)
                    if kind in _OF_ONE_RANK and struck:
                        struck = [random.Random(f"{seed}/{entry.name}/{phase}/{kind}").choice(struck)]
                    cells += [_cell(entry, phase, kind, rank, seed) for rank in struck]
    return cells


def _phases(entry: StruckProgram, kind: str) -> list[str]:
    if kind in (JOINER, CONTROLLER):
        return list(MIGRATION_PHASES)
    if kind == SECOND:  # who is asked for tensors is not known before; of two replicas one has to be left
        return [p for p in MIGRATION_PHASES if p != "transfer" and (entry.ranks > 2 or entry.buddy_every)]
    if kind == RESTART and entry.buddy_every:
        return []  # all ranks go back to their copies, in new processes, before anything is started anew
    if kind == PARTITION or kind in RUNGS:
        return [p for p in _FEW_PHASES if p in entry.phases]
    if kind == "planned":
        return [HEAD, *([EPOCH] if entry.epoch_step else [])]
    in_steps = [p for p in STEP_PHASES if p in entry.phases and p != HEAD and (p != EPOCH or entry.epoch_step)]
    return [*in_steps, *(p for p in PLACES if p in entry.places)]


def _ranks(entry: StruckProgram, wanted: Sequence[str]) -> list[int]:
    named = ranks_of(entry)
    if not wanted:
        return list(named.values())
    chosen = {named[w] for w in wanted if w in named} | {int(w) for w in wanted if w.isdigit()}
    return sorted(r for r in chosen if r < entry.ranks)


def _cell(entry: StruckProgram, phase: str, kind: str, rank: int, seed: int) -> Cell:
    chance = random.Random(f"{seed}/{entry.name}/{phase}/{kind}/{rank}")
    if phase in PLACES:
        step = 0
    elif phase == FIRST:
        step = 1
    elif phase == LAST:
        step = entry.steps
    elif phase == EPOCH:
        # A planned move stops some steps ahead: asked for shortly before the epoch ends, it happens around its end.
        step = entry.epoch_step if kind != "planned" else max(entry.epoch_step - 2, 1)
    elif kind == "planned":
        step = chance.randint(2, max(entry.steps // 3, 2))
    elif kind == REFILL:
        last = entry.steps - 2
        step = chance.randint(2, last - REFILL_APART_STEPS)
        again = chance.randint(step + REFILL_APART_STEPS, last)
        return Cell(entry.name, phase, kind, rank, step, chance.randrange(entry.ranks), again)
    else:
        step = chance.randint(3, entry.steps - 2)
    other = (rank + 1) % entry.ranks if kind == SECOND else -1
    return Cell(entry.name, phase, kind, rank, step, other)


def spread(cells: Sequence[Cell], count: int, seed: int) -> list[Cell]:
    """Draw `count` of the cells at random, entry by entry in turn: no entry has two before each has one."""
    chance = random.Random(seed)
    by_entry: dict[str, list[Cell]] = {}
    for cell in cells:
        by_entry.setdefault(cell.entry, []).append(cell)
    for of_entry in by_entry.values():
        newer = [cell for cell in of_entry if cell.kind in _NEWER]
        of_entry[:] = [cell for cell in of_entry if cell.kind not in _NEWER]
        chance.shuffle(of_entry)
        for cell in newer:
            of_entry.insert(random.Random(f"{seed}/{cell.name}").randint(0, len(of_entry)), cell)
    order = list(by_entry)
    chance.shuffle(order)
    chosen: list[Cell] = []
    while len(chosen) < count and any(by_entry.values()):
        for entry in order:
            if by_entry[entry] and len(chosen) < count:
                chosen.append(by_entry[entry].pop())
    return chosen
