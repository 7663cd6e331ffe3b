"""Drives one migration at a time: carries out its instructions, answers its questions, reports its record."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from torchrelay.controller.checkpoints.checkpoint import JobCheckpoint
from torchrelay.controller.checkpoints.rollback import Rollback
from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.decide.migration.quiesce import choose_boundary
from torchrelay.controller.decide.migration.stand import OutOfReach, stuck_alone
from torchrelay.controller.execution.bytes_done import BytesTold
from torchrelay.controller.execution.fill_in import OrderFiller
from torchrelay.controller.execution.journal_reading import JournalReading
from torchrelay.controller.execution.outcomes import Outcomes
from torchrelay.controller.execution.rereading import Rereading
from torchrelay.controller.execution.saving import Saving, writes_no_more
from torchrelay.controller.execution.targets import Answer, planned_target, resume_target, target_where_they_stand
from torchrelay.controller.migration import events as m
from torchrelay.controller.migration.machine import Migration
from torchrelay.controller.migration.state import State
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.picture.worker import Worker
from torchrelay.controller.replacement.choice import SpareChoice
from torchrelay.controller.restart.fallen import Fallen
from torchrelay.protocol.events import Decision, MigrationStarted, PhaseChanged
from torchrelay.protocol.exhaustive import assert_never
from torchrelay.protocol.messages import Fence, Inherits, KeptCopies, LateWorker, LookClosely
from torchrelay.protocol.words.causes import MigrationCause
from torchrelay.protocol.words.phases import PLANNED, RESUME, ROLLBACK, UNFORCED, UNPLANNED, Phase
from torchrelay.protocol.words.positions import JoinerAction
from torchrelay.protocol.words.rank_words import JOB_OVER

MOST_LOOK_CLOSELY = 64
"""The most agents that tell every change in a migration: how far some ranks are says how far all are, within a step."""
STANDING_PHASES = (
    Phase.FENCING,
    Phase.QUIESCING,
    Phase.TRANSFERRING,
    Phase.REBUILDING,
    Phase.VERIFYING,
    Phase.CHECKPOINTING,
)


class Driver:
    """Drives migrations. `give_up` is called when a migration leaves no way for the job to go on in its processes."""

    def __init__(
        self,
        config: ControllerConfig,
        job: Job,
        outbox: Outbox,
        give_up: Callable[[Fallen], None],
        checkpoint: JobCheckpoint | None = None,
    ) -> None:
        self._config = config
        self._job = job
        self._outbox = outbox
        self.checkpoint = checkpoint
        """The checkpoint that all ranks enter from in a migration of the kind RESUME."""
        self._resume_dir = config.resume_dir
        self.saving = Saving(config, job, outbox)
        self.rollback = Rollback(config.buddy_every, job, outbox)
        self.spares = SpareChoice(config, job, outbox, self.rollback)
        self.outcomes = Outcomes(config, outbox, self.saving, self.spares.respawns, give_up)
        self._reading = JournalReading(job, outbox, self._journal_read)
        self._rereading = Rereading(job, outbox)
        self.bytes_told = BytesTold(outbox)
        self._filler = OrderFiller(config, job, self.rollback)
        self._queue: deque[m.Event] = deque()
        self._carrying_out = False
        self._announced = ""
        self.count = config.migrations_begun
        self.migration: Migration | None = None
        self.committed: Callable[[int], None] = lambda target: None
        """Called with the boundary that ranks of a new generation go on from."""

    @property
    def phase(self) -> Phase:
        return self.migration.state.phase if self.migration else Phase.HEALTHY

    @property
    def kind(self) -> str:
        return self.migration.state.kind if self.migration else ""

    @property
    def holds_training(self) -> bool:
        """Whether ranks stand still, so that an exit of one is a consequence of the migration."""
        if self.migration is None:
            return False
        if self.kind in UNFORCED:
            return self.phase in STANDING_PHASES and self.phase is not Phase.QUIESCING
        return self.phase in (*STANDING_PHASES, Phase.PREPARING)

    def has_given_up(self, worker: str) -> bool:
        """Return whether the worker's rank is on its way elsewhere: how the worker ends is of no interest any more."""
        if self.migration is None:
            return False
        s = self.migration.state
        return worker in s.fencing or (s.kind != PLANNED and worker in s.lost.values())

    def begin(self, event: m.Event, now_s: float) -> str:
        """Begin a migration with its first event. Return its name."""
        self.count += 1
        name = f"m{self.count}"
        holders = {} if isinstance(event, m.ResumeRequested) else self._job.holders
        self._announced = ""
        exited = self._job.workers[event.worker].exited if isinstance(event, m.RankLost) else None
        self.outcomes.begins(event, exited.exit_code if exited is not None else None)
        self.saving.begin()
        self._job.join_failures.clear()
        for node in islice(self._job.nodes, MOST_LOOK_CLOSELY):
            self._outbox.to_agent(node, LookClosely(True))
        self.migration = Migration.new(
            name, holders, self._job.world_size, self._job.generation, now_s, self._config.deadlines
        )
        self.migration.state.finished.update(w.rank for w in self._job.rank_workers if w.finishing)
        self.feed(event, now_s)
        return name

    def feed(self, event: m.Event, now_s: float) -> None:
        """Tell the migration in progress, if any, and carry out what it asks for, to the last consequence."""
        if isinstance(event, m.Diverged):
            self.outcomes.came_apart()
        self._queue.append(event)
        if self._carrying_out:
            return
        self._carrying_out = True
        try:
            while self._queue:
                event = self._queue.popleft()
                if self.migration is None:
                    continue
                state = self.migration.state
                instructions = self.migration.handle(event, now_s)
                self._job.generation = max(self._job.generation, state.generation)
                self._announce(state)
                for instruction in instructions:
                    self._carry_out(state, instruction, now_s)
                if (gone := writes_no_more(event)) and (answer := self.saving.lost(state, gone)) is not None:
                    self._saved(state, answer, now_s)
        finally:
            self._carrying_out = False

    def job_over(self, reason: str) -> None:
        """Call off a move that was asked for and is not committed, since the job ends."""
        if self.migration is not None and self.phase is not Phase.COMMITTED:
            self.outcomes.move_is_off(self.migration.state.migration, f"{JOB_OVER} before it was done: {reason}")

    def lose(
        self,
        worker: Worker,
        reason: str,
        now_s: float,
        *,
        since_s: float | None = None,
        cause: MigrationCause = MigrationCause.PROCESS,
    ) -> None:
        """Give up a worker, which is dead or is to be replaced. Every loss of a rank is told to the migration here.

        The loss of a rank's holder begins a migration where none is under way. A joiner belongs to the one under way.
        `since_s`: when it happened; now, if left out.
        """
        lost = m.RankLost(worker.rank, worker.worker, reason, now_s if since_s is None else since_s, cause.value)
        if self._job.is_holder(worker):
            self._begin_or_feed(lost, now_s)
        else:
            self.feed(lost, now_s)

    def diverged(self, event: m.Diverged, now_s: float) -> None:
        """Have all ranks save what they hold, and end the job: ranks that held the same do not any more."""
        self._begin_or_feed(event, now_s)

    def _begin_or_feed(self, event: m.RankLost | m.Diverged, now_s: float) -> None:
        if self.migration is None:
            self.begin(event, now_s)
        else:
            self.feed(event, now_s)

    def clear_checkpoints(self, keep: int) -> None:
        """Remove just-in-time checkpoints that are not needed any more."""
        self.saving.clear(keep)

    def resume(self, checkpoint: JobCheckpoint, directory: str, now_s: float) -> None:
        """Let all ranks enter from the checkpoint, in the processes that are spares now."""
        self.checkpoint = checkpoint
        self._resume_dir = directory
        for rank, part in checkpoint.ranks.items():
            journal = self._job.journal(rank)
            shadow = part.action == JoinerAction.SHADOW
            at = checkpoint.target - 1 if shadow else checkpoint.target
            journal.boundaries[at] = part.journal
            journal.set_up = part.set_up
            if shadow:
                journal.gates[at] = part.gate_journal
        self.begin(m.ResumeRequested(f"resumes from {directory}"), now_s)

    def saved(self, rank: int, size_bytes: int) -> None:
        self.saving.tensors_saved(rank, size_bytes)

    def started(self, node: str, message: LateWorker, now_s: float) -> None:
        """Take in a process beyond those that the job began with, or the news that it could not be started."""
        self.rollback.started(node, message, now_s)
        if message.pid == 0:
            self.spares.respawns.over(message.rank)
        self.feed(m.SpareWarm(), now_s)

    def late_one_ended(self, worker: Worker, now_s: float) -> None:
        """Take note that a process that was started for a rank has ended before it was given the rank."""
        self.rollback.ended(worker)
        self.spares.respawns.over(worker.started_for)
        self.feed(m.SpareWarm(), now_s)

    def files_kept(self, worker: str, now_s: float) -> None:
        if (answer := self.saving.kept(worker)) is not None:
            assert self.migration is not None
            self._saved(self.migration.state, answer, now_s)

    def reads(self, worker: str) -> bool:
        """Return whether the journals of this worker are waited for."""
        return self._reading.waits_for(worker) or self._rereading.waits_for(worker)

    def journal_arrived(self, worker: str, now_s: float) -> None:
        self._reading.arrived(worker, now_s)
        if self._rereading.arrived(worker):
            self._reread(now_s)

    def tick(self, now_s: float) -> None:
        self.spares.respawns.now_s = now_s
        self.feed(m.TimePassed(), now_s)
        if self._rereading.is_late(now_s):
            self._reread(now_s)

    def _reread(self, now_s: float) -> None:
        """Decide on, since all that will be heard of newer journals has been heard."""
        if self.migration is None or self.phase is not Phase.QUIESCING:
            return
        s = self.migration.state
        outdated = self._rereading.outdated(s)
        for worker, why in outdated.items():
            self.lose(self._job.workers[worker], why, now_s)
        if not outdated and self._rereading.is_of(s):
            self._answer_target(s, now_s)

    def kept_arrived(self, node: str, copies: KeptCopies, now_s: float) -> None:
        if self.rollback.arrived(node, copies):
            self._copies_known(now_s)

    def _copies_known(self, now_s: float) -> None:
        for rank in self.rollback.take_set_ups():
            self.feed(m.JournalRead(rank), now_s)
        if self.migration is None or self.kind != UNPLANNED or not self.rollback.is_asked:
            return
        if self.phase is Phase.QUIESCING:
            self._feed_or_lose(self.migration.state, self.rollback.decide(self.migration.state), now_s)
        elif self.phase is Phase.CHECKPOINTING:
            decided = self.rollback.decide(self.migration.state)
            self.feed(m.CheckpointFailed(decided.reason) if isinstance(decided, m.TargetImpossible) else decided, now_s)

    def _saved(self, s: State, answer: m.CheckpointWritten | m.CheckpointFailed | m.FolderChosen, now_s: float) -> None:
        """Pass on whether the ranks' state could be saved. Where it could not, their copies are what is left."""
        if isinstance(answer, m.CheckpointFailed):
            self._look_for_copies(s, answer, now_s)
        else:
            self.feed(answer, now_s)

    def _look_for_copies(self, s: State, refused: m.CheckpointFailed | m.TargetImpossible, now_s: float) -> None:
        """Ask for all ranks' copies, since nothing less will do. A rank that is lost at the same step again and again gets none."""
        if not self.rollback.is_on or s.kind != UNPLANNED or self.outcomes.is_apart:
            self._feed_or_lose(s, refused, now_s)
        elif again := next(filter(None, map(self.spares.respawns.comes_again, sorted(s.lost))), ""):
            is_told = again in s.no_spare and isinstance(refused, m.CheckpointFailed)
            self.feed(refused if is_told else type(refused)(f"{refused.reason}; {again}"), now_s)
        else:
            self.rollback.ask(refused.reason)

    def _feed_or_lose(self, s: State, answer: m.Event, now_s: float) -> None:
        """Replace ranks that are stuck where nothing else leads on, not even older copies. Otherwise pass the answer on."""
        stuck = {}
        if isinstance(answer, m.TargetImpossible) and s.kind == UNPLANNED and not s.no_spare:
            stuck = stuck_alone(s.standings)
        for rank, why in stuck.items():
            self.lose(self._job.workers[s.holders[rank]], f"{why}; it is replaced, too", now_s)
        if not stuck:
            self.feed(answer, now_s)

    def _journal_read(self, rank: int, now_s: float) -> None:
        """Go on once all is read that is left of the rank's journal. A copy of the rank's state may still have its set-up."""
        if self.kind != UNPLANNED or not self.rollback.looks_for_set_up(rank):
            self.feed(m.JournalRead(rank), now_s)

    def node_lost(self, node: str, now_s: float) -> None:
        """Ask other nodes for what the lost node's agent owed. A process that it was to fence is as good as gone."""
        if self.rollback.heard_all(node):
            self._copies_known(now_s)
        if self._rereading.node_lost():
            self._reread(now_s)
        workers = self._job.workers
        if self.migration is not None:
            fenced = [worker for worker in self.migration.state.fencing if workers[worker].node == node]
            self._queue.extend(map(m.WorkerGone, fenced))
        self._reading.node_lost(node, now_s)
        self.feed(m.TimePassed(), now_s)

    def _announce(self, s: State) -> None:
        if s.phase in (Phase.HEALTHY, Phase.SUSPECTED) or self._announced == s.kind:
            return
        self._announced = s.kind
        self._outbox.emit(MigrationStarted(s.migration, s.kind, s.rank, s.reason, s.generation, s.cause, s.by))

    def _carry_out(self, s: State, instruction: m.Instruction, now_s: float) -> None:  # noqa: C901 - one case for each instruction
        out = self._outbox
        match instruction:
            case m.Order(worker, rank, order):
                out.to_worker(worker, self._filler.fill_in(self.kind, rank, order, self.checkpoint))
            case m.FenceWorker(worker, _):
                if self._job.is_lost_with_node(worker):
                    self._queue.append(m.WorkerGone(worker))  # communicators of the new generation shut it out
                else:
                    again = self.kind == ROLLBACK and self.rollback.starts_over(worker)
                    out.to_agent_of(worker, Fence(worker, again))
            case m.ReadJournal(rank, worker):
                self._reading.ask(worker, rank, now_s)
            case m.ChooseSpare(rank):
                self.feed(self.spares.choose(self.kind, rank, self.count, now_s), now_s)
            case m.ChooseBoundary(tries):
                furthest = max(w.seen_boundary for w in self._job.rank_workers)
                point = choose_boundary(furthest, self._job.clock.median_step_s, tries, self._config.policy)
                self.feed(m.BoundaryChosen(point.boundary, point.allowance_s, point.reason), now_s)
            case m.DecideTarget():
                self._answer_target(s, now_s)
            case m.WriteCheckpoint(directory):
                if (written := self.saving.write(s, directory)) is not None:
                    self._saved(s, written, now_s)
            case m.ChooseFolder(_, reason):
                self._saved(s, self.saving.elsewhere(s, reason), now_s)
            case m.PhaseEntered(phase, before_s):
                self.bytes_told.phase_entered(s.migration, s.generation, phase, now_s)
                if self._announced:
                    out.emit(PhaseChanged(s.migration, phase.value, before_s))
            case m.RankMoved(rank, worker):
                self.committed(s.target)
                self._job.move(rank, worker, s.target)
                out.to_agent_of(worker, Inherits(worker, tuple(self._job.checks.get(rank, ()))))
            case m.LoseRank(lost):
                self._begin_or_feed(lost, now_s)
            case m.Noted(text, warning):
                if warning:
                    out.log("warning", text)
                else:
                    out.emit(Decision(s.migration, text))
            case m.Ignored(text):
                out.log_once("info", f"ignored: {text}")
            case m.Finished():
                self._finish(s, instruction)
            case _:
                assert_never(instruction)

    def environment(self, rank: int) -> dict[str, str]:
        """Return the environment that the launcher has told the rank, or would tell it."""
        return self._filler.environment(rank)

    def _answer_target(self, s: State, now_s: float) -> None:
        """Answer the migration's question for its target: at once, or when agents have answered."""
        answer = self._decide_target(s)
        if isinstance(answer, OutOfReach):
            if self._rereading.begin(s, answer.reason, now_s):
                return
            answer = m.TargetImpossible(self._rereading.explain(s, answer.reason))
        if isinstance(answer, m.TargetImpossible):
            self._look_for_copies(s, answer, now_s)
        else:
            self.feed(answer, now_s)

    def _decide_target(self, s: State) -> Answer | m.RollBackDecided | OutOfReach:
        if s.kind == PLANNED:
            return planned_target(self._job, s, secrets.token_hex)
        if s.kind == ROLLBACK:
            return self.rollback.target(s, secrets.token_hex)
        if self.checkpoint is not None and s.kind == RESUME:
            return resume_target(self.checkpoint, str(Path(self._resume_dir).absolute()))
        if s.saves and self.saving.barred:
            return m.TargetImpossible(self.saving.barred)
        target = target_where_they_stand(
            self._job, s, secrets.token_hex, lambda at: self.saving.folder(at, s.kind), all_save=self.outcomes.is_apart
        )
        if isinstance(target, m.TargetDecided) and s.no_spare and target.target in self._config.worn_out:
            return m.TargetImpossible(f"the job has begun again at step {target.target} too often")
        return target

    def _finish(self, s: State, finished: m.Finished) -> None:
        self.migration = None
        self._outbox.to_all_agents(LookClosely(False))
        self.saving.over()
        self.outcomes.finished(s, finished)
