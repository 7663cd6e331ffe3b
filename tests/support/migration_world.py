"""A world around one migration, on virtual time: workers that answer, a controller that decides, and invariants."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from torchrelay.controller.migration import events as m
from torchrelay.controller.migration.machine import Migration
from torchrelay.controller.migration.state import restore, snapshot
from torchrelay.protocol import messages as msg
from torchrelay.protocol.words.phases import UNFORCED, Deadlines, Phase

BOUNDARY = 7
REPLY_S = 0.01
REDONE = 1


class World:
    """`spares`: how many. `boundary_is_late`: how many proposed boundaries turn out to be too near.

    `silent`: workers that answer nothing from now on; `lacking`: replies (type, worker or "" for all) that never come.
    `slow`: workers whose words stay on their way. Replies wait in `due` until `step` delivers them.
    """

    def __init__(self, world_size: int = 3, spares: int = 2, *, resume: bool = False, offline: bool = False) -> None:
        self.now_s = 100.0
        self.world_size = world_size
        holders = {} if resume else {r: f"w{r}" for r in range(world_size)}
        self.migration = Migration.new("m1", holders, world_size, 4, self.now_s, Deadlines())
        self.spares = [f"s{i}" for i in range(world_size if resume else spares)] + (["s9"] if resume else [])
        self.offline = offline
        self.boundary_is_late = 0
        self.silent: set[str] = set()
        self.slow: set[str] = set()
        self.lacking: set[tuple[type, str]] = set()
        self.gone: set[str] = set()
        self.due: list[tuple[str, m.Event]] = []
        self.did: list[m.Instruction] = []
        self.phases: list[Phase] = []
        self.next_losses: list[m.RankLost] = []
        self.finished: m.Finished | None = None
        self.target_impossible = ""
        self.differed = ""
        """In what donors do not agree."""
        self.at_gate: set[int] = set()
        """Ranks that stand at a gate which the others have passed."""
        self.rolls_back = self.gives = self.helps = False
        """`helps`: all survivors give beside the donor."""
        self.spare_is_starting = False
        self.restart_controller = False
        self.cannot_save: set[tuple[str, str]] = set()
        """Worker and folder, where it reports that it could not write."""
        self.folders = ["/jit"]
        """Where checkpoints may go; `/full/...` is refused by the controller's own files."""
        self._verified: set[tuple[str, int]] = set()
        self._interrupted: set[tuple[str, int]] = set()
        self._last_generation = 4

    @property
    def state(self) -> Any:
        return self.migration.state

    @property
    def phase(self) -> Phase:
        phase: Phase = self.migration.state.phase
        return phase

    def feed(self, event: m.Event) -> list[m.Instruction]:
        if self.restart_controller:
            self.migration = Migration(restore(snapshot(self.state)), self.migration.deadlines)
        if isinstance(event, m.WorkerGone):
            self.gone.add(event.worker)
        if isinstance(event, m.Said) and isinstance(event.report, msg.Verified):
            self._verified.add((event.worker, event.report.generation))
        instructions = self.migration.handle(event, self.now_s)
        assert self.state.generation >= self._last_generation, "a generation was used again"
        self._last_generation = self.state.generation
        self.did += instructions
        for instruction in instructions:
            self._check(instruction)
            self._answer(instruction)
        return instructions

    def lose(self, rank: int, worker: str | None = None, reason: str = "killed") -> list[m.Instruction]:
        """The worker dies, as its agent sees it."""
        worker = worker or self.state.holders[rank]
        self.silent.add(worker)
        self.due = [(w, e) for w, e in self.due if w != worker or isinstance(e, (m.WorkerGone, m.JournalRead))]
        return self.feed(m.RankLost(rank, worker, reason, self.now_s))

    def step(self, chosen: int = 0) -> None:
        """One reply arrives."""
        worker, event = self.due.pop(chosen)
        self.now_s += REPLY_S
        if worker not in self.silent or isinstance(event, (m.WorkerGone, m.JournalRead)):
            self.feed(event)

    def run(self, until: Callable[[], bool] = lambda: False, limit: int = 2000) -> None:
        """Delivers replies in order until the condition holds or nobody has anything to say."""
        for _ in range(limit):
            ready = [i for i, (worker, _) in enumerate(self.due) if worker not in self.slow]
            if until() or not ready:
                return
            self.step(ready[0])
        raise AssertionError(f"no end after {limit} replies, in {self.phase}")

    def run_to(self, phase: Phase) -> None:
        self.run(lambda: self.phase is phase)
        assert self.phase is phase, f"got to {self.phase}, not {phase}"

    def pass_deadline(self) -> list[m.Instruction]:
        assert self.state.deadline_s is not None, f"{self.phase} has no deadline"
        self.now_s = self.state.deadline_s
        return self.feed(m.TimePassed())

    def orders(self, kind: type, generation: int | None = None) -> dict[str, Any]:
        """Worker -> its last order of that kind."""
        found = [i for i in self.did if isinstance(i, m.Order) and isinstance(i.order, kind)]
        return {i.worker: i.order for i in found if generation in (None, getattr(i.order, "generation", None))}

    def _check(self, instruction: m.Instruction) -> None:
        if isinstance(instruction, m.PhaseEntered):
            self.phases.append(instruction.phase)
        elif isinstance(instruction, m.Finished):
            assert self.finished is None, "the migration ended twice"
            self.finished = instruction
        elif isinstance(instruction, m.LoseRank):
            self.next_losses.append(instruction.lost)
        elif isinstance(instruction, m.RankMoved):
            was = f"w{instruction.rank}"
            assert self.state.kind == "resume" or was in self.gone, f"rank {instruction.rank} has two holders"
            others = [w for r, w in self.state.holders.items() if r != instruction.rank]
            assert instruction.worker not in others, "one worker holds two ranks"
        elif isinstance(instruction, m.DecideTarget):
            standing = {r: x.generation for r, x in self.state.standings.items() if r in self.state.survivors}
            assert standing == dict.fromkeys(self.state.survivors, self.state.generation), "not everybody stands"
        elif isinstance(instruction, m.Order):
            self._check_order(instruction)

    def _check_order(self, instruction: m.Order) -> None:
        order = instruction.order
        if isinstance(order, msg.Commit):
            members = self.state.members.values()
            unverified = [w for w in members if (w, order.generation) not in self._verified]
            assert not unverified or self.state.offline, f"Commit before {unverified} verified"
        if isinstance(order, msg.Interrupt):
            key = (instruction.worker, order.generation)
            assert key not in self._interrupted, "Interrupt twice in one generation"
            self._interrupted.add(key)
        if isinstance(order, (msg.Plan, msg.Assign)) and self.state.kind == "unplanned":
            dead = {self.state.lost.get(instruction.rank, "")} - {""}
            assert dead <= self.gone, "a rank is given away while its holder lives"

    def _answer(self, instruction: m.Instruction) -> None:
        match instruction:
            case m.FenceWorker(worker, _):
                self.silent.add(worker)
                self._soon(worker, m.WorkerGone(worker))
            case m.ReadJournal(rank, worker):
                self._soon(worker, m.JournalRead(rank))
            case m.ChooseSpare(rank):
                if self.spares:
                    self.feed(m.SpareChosen(rank, self.spares.pop(0), "the first one"))
                else:
                    self.feed(m.NoSpare(rank, "no spare is left", self.spare_is_starting))
            case m.ChooseBoundary(tries):
                self.feed(m.BoundaryChosen(BOUNDARY + tries, 1.0, "far enough"))
            case m.DecideTarget() if (m.TargetDecided, "") not in self.lacking:
                s = self.state
                back = self.rolls_back and s.kind == "unplanned" and not s.no_spare
                self.feed(m.RollBackDecided(BOUNDARY - 4, 4, "nobody holds it") if back else self._decide())
            case m.WriteCheckpoint(directory) if directory.startswith("/full"):
                self._next_folder("No space left on device")
            case m.WriteCheckpoint(directory):
                self.feed(m.CheckpointWritten(directory))
            case m.ChooseFolder(directory, reason):
                assert directory == self.folders[0]
                self._next_folder(reason)
            case m.Order(worker, rank, order):
                for report in self._reports(worker, rank, order):
                    self._soon(worker, m.Said(rank, worker, report))

    def _next_folder(self, reason: str) -> None:
        del self.folders[0]
        if self.folders:
            self.feed(m.FolderChosen(self.folders[0], reason))
        else:
            self.feed(m.CheckpointFailed(f"no folder is left: {reason}"))

    def _soon(self, worker: str, event: m.Event) -> None:
        spoken = type(event.report) if isinstance(event, m.Said) else type(event)
        if not self.lacking & {(spoken, worker), (spoken, "")}:
            self.due.append((worker, event))

    def _decide(self) -> m.TargetDecided | m.GateToPass | m.TargetImpossible:
        s = self.state
        all_enter = s.kind in ("resume", "rollback")
        donors = {r: (r if s.kind == "planned" else min(s.survivors, default=-1)) for r in s.lost}
        helpers = {r: tuple(x for x in s.survivors if x != donor) for r, donor in donors.items()} if self.helps else {}
        if behind := [r for r in s.survivors if s.standings[r].position == "gate"]:
            return m.GateToPass(tuple(behind), "others have passed it")
        if self.target_impossible or (not all_enter and -1 in donors.values()):
            return m.TargetImpossible(self.target_impossible or "nobody is left")
        return m.TargetDecided(
            BOUNDARY,
            "decided",
            actions=dict.fromkeys(s.survivors, "stay" if s.kind in UNFORCED else "rewind"),
            entries=dict.fromkeys(s.lost, "enter"),
            donors=({1: 0} if self.gives else {}) if all_enter else donors,
            tokens={r: f"token{r}" for r in s.lost},
            peer_hosts=dict.fromkeys(s.lost, "host"),
            offline=self.offline,
            helpers={} if all_enter else helpers,
            savers=(min(s.survivors, default=0),),
            directory=self.folders[0] if s.saves else "",
        )

    def _reports(self, worker: str, rank: int, order: msg.ShimOrder) -> list[msg.ShimReport]:  # noqa: C901 - one case for each order
        g = getattr(order, "generation", 0)
        at = self.state.quiesce_boundary if self.state.kind in UNFORCED else BOUNDARY
        standing = msg.Standing(g, at, at, "head", "", f"{worker}.host", 1000 + rank)
        match order:
            case msg.Interrupt():
                joins = rank in self.state.joiners and self.state.joiners[rank].worker == worker
                if rank in self.at_gate and not joins:
                    return [msg.Standing(g, BOUNDARY - 1, BOUNDARY - 1, "gate", "", f"{worker}.host", 1000 + rank)]
                return [msg.Prepared(g, f"{worker}.host", 1)] if joins else [standing]
            case msg.PassGate():
                self.at_gate.discard(rank)
                return [msg.Standing(g, BOUNDARY - 1, BOUNDARY, "after", "", f"{worker}.host", 1000 + rank)]
            case msg.Assign():
                return [msg.Prepared(g, f"{worker}.host", 1)]
            case msg.QuiesceAt(quiesce_id):
                late = self.boundary_is_late > 0 and rank == 0
                self.boundary_is_late -= late
                return [msg.QuiesceAnswer(quiesce_id, not late, BOUNDARY - 3)]
            case msg.QuiesceDecided(_, True):
                g = self.state.generation
                return [msg.Standing(g, at, at, "head", "", f"{worker}.host", 1000 + rank)]
            case msg.Serve():
                return [msg.Serving(g, "donor", 99)]
            case msg.Plan(action="enter"):
                return [msg.Transferred(g, 1000, 3, 0.1, self.differed)]
            case msg.Rebuild():
                return [msg.Rebuilt(g, 0.1), msg.Verified(g)]
            case msg.Commit():
                return [msg.Resumed(g, REDONE), msg.FirstStep(g, BOUNDARY + 1)]
            case msg.SaveCheckpoint(directory=directory) if (worker, directory) in self.cannot_save:
                return [msg.OrderFailed(g, "SaveCheckpoint", f"{directory} is full", unharmed=True)]
            case msg.SaveCheckpoint():
                return [msg.CheckpointSaved(g, 1000)]
        return []


def begin(world: World, kind: str, rank: int = 1) -> None:
    """Starts a migration of `kind`; nothing has been answered yet."""
    if kind == "planned":
        world.feed(m.MoveRequested(rank, "a new fan"))
    elif kind == "save":
        world.feed(m.SaveRequested("before the maintenance"))
    elif kind == "resume":
        world.feed(m.ResumeRequested("from /jit"))
    else:
        world.rolls_back = kind == "rollback"
        world.lose(rank)


def shuffled_step(world: World, rng: random.Random) -> None:
    """Any reply may be next, but each worker is heard in the order in which it spoke."""
    first_of = {worker: i for i, (worker, _) in reversed(list(enumerate(world.due)))}
    world.step(first_of[rng.choice(sorted(first_of))])
