"""A rank between its boundaries: takes them, goes back to them, passes the gate; knows at each moment where the rank stands."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import IO, Any

import torch

from torchrelay.protocol.logs.log_lines import LogLines
from torchrelay.protocol.security.transfer_protection import INTEGRITY
from torchrelay.protocol.words.positions import PHASES, RankPhase, StandingPosition
from torchrelay.shim.adapters.parallel import ddp_layouts
from torchrelay.shim.agent_link import unfit
from torchrelay.shim.agent_link.link import AgentLink
from torchrelay.shim.capture.iteration.generator_position import sources_below
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.scripted_calls import ScriptedCalls
from torchrelay.shim.capture.state.led_iterators import LedIterators
from torchrelay.shim.capture.state.training_files import TrainingFiles
from torchrelay.shim.comm.collective_records import ByGroup, CollectiveRecords
from torchrelay.shim.comm.finished import FinishedCollective
from torchrelay.shim.comm.generations.communicators import Communicators
from torchrelay.shim.comm.new_groups import NewGroups
from torchrelay.shim.comm.side_thread_collectives import SideThreadCollectives
from torchrelay.shim.data.fetching_turns import FetchingTurns
from torchrelay.shim.data.iterator_replay import IteratorReplay
from torchrelay.shim.gradients.kept_gradients import KeptGradients
from torchrelay.shim.instrument.activation import Activation
from torchrelay.shim.instrument.loop_tracker import LoopTracker
from torchrelay.shim.journal import last_draw, writer
from torchrelay.shim.journal.finished_loops import FinishedLoops
from torchrelay.shim.journal.remote_copies import CopiedJournal
from torchrelay.shim.observe.changed_stores import ChangedStores
from torchrelay.shim.observe.fault_injection import FaultInjector
from torchrelay.shim.observe.loss_watch import LossWatch
from torchrelay.shim.observe.protection_report import ProtectionReporter
from torchrelay.shim.observe.stand_for_check import CheckHold
from torchrelay.shim.recovery.survivor import SurvivorRecovery
from torchrelay.shim.replicas import replica_checks
from torchrelay.shim.replicas.own_tensors import OwnTensors
from torchrelay.shim.replicas.peer_checkpoints import PeerCheckpoints
from torchrelay.shim.saves.async_saves import AsyncSaves
from torchrelay.shim.script.guard import Guard, caller
from torchrelay.shim.set_up.asked_paths import canonical
from torchrelay.shim.set_up.files_of_training import FilesOfTraining
from torchrelay.shim.set_up.recording import SetUp
from torchrelay.shim.step.boundary_snapshot import BoundarySnapshot
from torchrelay.shim.step.collective_side import CollectiveSide
from torchrelay.shim.step.cost_budget import Budget
from torchrelay.shim.step.costs import Costs
from torchrelay.shim.step.going_back import GoingBack
from torchrelay.shim.step.interruptions import Interruptions
from torchrelay.shim.step.left_loops import LeftLoops
from torchrelay.shim.step.repeated_step import RepeatedStep
from torchrelay.shim.step.replaced_tensors import ReplacedTensors
from torchrelay.shim.step.step_state import STANDS_AT, StepPosition, StepState
from torchrelay.shim.step.taking_boundaries import TakingBoundaries
from torchrelay.shim.step.training_loop import LoopHead, TrainingLoop
from torchrelay.shim.step.unprotected import Unprotected
from torchrelay.shim.step.updates.late_forwards import LateForwards
from torchrelay.shim.step.updates.optimizer_updates import OptimizerUpdates


class Engine:
    """Listener of the loops, of the collectives and of the optimizer; the one owner of what a rank knows of itself."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        address: str,
        link: AgentLink,
        journal: CopiedJournal,
        tracker: LoopTracker,
        log: LogLines,
        *,
        set_up: SetUp | None = None,
        scripted: ScriptedCalls | None = None,
        protection: str = INTEGRITY,
    ) -> None:
        """Begin without a boundary. `set_up`: None where what set-up learns from outside is not recorded.

        `protection`: as in `transfer_protection`.
        """
        self.rank = rank
        self.world_size = world_size
        self.protection = protection
        self.link = link
        self.journal = journal
        self.tracker = tracker
        self.log = log
        self.guard: Guard = Guard(self._self)
        tracker.takes = self.guard.takes
        files = TrainingFiles(lambda *args: self.opens(*args), canonical)
        self.trees: ModuleTrees = ModuleTrees(led=LedIterators(sources_below), files=files)
        self.files = FilesOfTraining(files, self.takes_part, self._file_is_read_again)
        self.fetching = FetchingTurns(self.trees.queues, self.is_state)
        self.draws = IteratorReplay()
        self.scripted = scripted if scripted is not None else ScriptedCalls()
        self.draws.is_state = self.is_state
        self.draws.led = self.trees.led
        self._draw = self.guard.entry(next, self.draws.next)
        self.drawn: Callable[[Any, tuple[Any, ...]], Any] = lambda iterator, default: self._draw(iterator, *default)
        self.comms: Communicators = Communicators(
            rank, world_size, address, log, stuck=lambda reason: unfit.end(link, log, reason)
        )
        self.confirm = self.comms.synchronize
        self.new_groups: NewGroups | None = None
        self.communications: dict[str, Callable[..., Any]] = {}
        """Functions that are called in place of those of torch.distributed, by name."""
        self.layouts = ddp_layouts.Layouts()
        self.wrapped = self.layouts.wrappers
        self._may_wait = 0
        self.equip()
        self.set_up = set_up
        self.opens: Callable[..., IO[Any]] = open
        """Opens files for the script: copies of them, where a joiner may not write yet."""
        self.costs = Costs()
        self.budget = Budget()
        self.reporter = ProtectionReporter(self)
        self.stores = ChangedStores(self)
        self.recovery = SurvivorRecovery(self, link)
        self.commit: BoundarySnapshot | None = None
        self.step = StepState()
        self.records = CollectiveRecords(journal.write_after)
        self.replayed = self.records.replayed
        self.shadow: Any = None
        self.way_in: Any = None
        """The way of a joiner to the loop that it enters; None where there is no such way, or the joiner is there."""
        self.phases = FinishedLoops()
        self.updates = OptimizerUpdates(self)
        self.training = TrainingLoop(tracker, self.step, self.updates.early)
        self.gradients = KeptGradients()
        self._not_captured: Exception | None = None
        """What went wrong at the latest loop's head, as long as no optimizer step was seen."""
        self.capturing = True
        """Off once something could not be captured: the rank goes on, unprotected."""
        self._main = threading.main_thread().ident
        self.writer = writer.Writer(self)
        self.replaced = ReplacedTensors(self)
        self.replicas = replica_checks.ReplicaChecks(self)
        self.collective_side = side = CollectiveSide(self)
        self.mode = side.mode
        self.before_first_gate = side.before_first_gate
        self.communication_begins = side.communication_begins
        self.collective_begins = side.collective_begins
        self.record = side.record
        self.record_message = side.record_message
        self.completed = side.completed
        self.begun_aside = side.begun_aside
        self.waited_for = side.waited_for
        self.own_result_late = side.own_result_late
        self.caught_up = side.caught_up
        self.behind_gate = side.behind_gate
        self.answer = side.answer
        self.answered = side.answered
        self.late_forwards = LateForwards(self)
        self.sharded_alone = self.late_forwards.alone
        self.sharded_after_step = self.late_forwards.after_step
        self.interruptions = Interruptions(self)
        self.interrupted = self.interruptions.interrupted
        self.interrupted_for_good = self.interruptions.for_good
        self.caught = self.interruptions.caught
        self.rewind = self.interruptions.rewind
        self.may_be_of_garbage = self.interruptions.may_be_of_garbage
        self.take_boundary = TakingBoundaries(self).take
        self.go_back = GoingBack(self).to
        self.unprotected = Unprotected(self)
        self.fails_closed = self.unprotected.fails_closed
        self.give_up = self.unprotected.give_up
        self.raises = self.unprotected.raises
        self.left = LeftLoops(self)
        self.again = RepeatedStep()
        self.ended = self.left.ended
        self.summed_up = self.updates.summed_up
        self.trained_in_draw = self.updates.in_draws.has_yielded
        self.saves = AsyncSaves(self)
        side_threads = SideThreadCollectives(self)
        self.beside = side_threads.call
        self.waits_beside = side_threads.wait
        self.communicates_beside = side_threads.communicate

    def _self(self) -> Engine:
        return self

    def _file_is_read_again(self) -> None:
        self.reporter.file_is_read_again(self.commit)

    def is_state(self, obj: Any) -> bool:
        return self.commit is not None and id(obj) in self.commit.state.index

    def equip(
        self,
        *,
        hold: CheckHold | None = None,
        keeper: PeerCheckpoints | None = None,
        own: OwnTensors | None = None,
        numbers: LossWatch | None = None,
        faults: FaultInjector | None = None,
    ) -> None:
        """Take what the configuration asks for and needs a rank. Called before the first step."""
        self.hold = hold
        self.keeper = keeper
        self.own = own
        self.numbers = numbers
        self.faults = faults

    # A joiner: on its way to a boundary, then perhaps in a shadow step, then the rank.

    def join_by(self, way_in: Any, recorded: Iterable[FinishedCollective]) -> None:
        """Begin as a joiner: what set-up calls is answered with what the lost rank had `recorded` of its own."""
        self.records.answer_with(recorded)
        self.saves.live = False
        self.way_in = way_in

    def arrive(self) -> None:
        """End the way in: the joiner is at the head where it enters."""
        self.way_in = None

    def begin_shadow_step(self, shadow: Any) -> None:
        self.shadow = shadow

    def be_the_rank(self, left: ByGroup) -> None:
        """Become the rank, with peers from here on. `left`: collectives that the peers have finished and this process has not."""
        self.shadow = None
        self.records.have_peers(left)

    def hear_loops(self) -> None:
        """Let loops tell this rank what they do, and no longer its way in."""
        self.tracker.listener = self
        self.draws.live = True

    # What others are told of it.

    def waiting(self, on: bool) -> None:
        """Say that a wait for peers begins, or is over: as often the one as the other, since waits may be nested."""
        self.journal.wait(on)
        self.alive()

    def may_wait(self, on: bool) -> None:
        """Say that a call begins, or is over, that communicates within and also calls the script's own code, such as a backward."""
        self._may_wait += 1 if on else -1
        self.waiting(on)

    def only_may_wait(self) -> bool:
        """Return whether the rank is in a call of `may_wait`, and in no communication there that is known of. For any thread."""
        return 0 < self.journal.waiting == self._may_wait

    def alive(self) -> None:
        self.journal.count += 1
        self.journal.publish()

    def phase(self, phase: RankPhase) -> None:
        self.journal.phase = PHASES.index(phase)
        self.alive()

    # What goes wrong.

    def standing_position(self) -> StandingPosition:
        if self.left.is_left():
            return StandingPosition.SHARDED if self.late_forwards.seen else StandingPosition.LEFT
        position = self.step.position
        if self.step.astray or (self.step.is_before_update and self.has_left(sys._getframe(1))):
            return StandingPosition.ASTRAY
        if self.step.is_past_gate and not (position is StepPosition.AFTER and self.updates.all_done()):
            return StandingPosition.TORN
        return StandingPosition.SHARDED if self.late_forwards.seen else STANDS_AT[position]

    # What the loops tell.

    def place(self) -> str:
        """Return the place of the latest boundary; empty where its loop is over."""
        return self.commit.place if self.commit is not None and self.commit.activation in self.tracker.stack else ""

    def heads_at_gate(self) -> int:
        """Return how often the head of the latest boundary's loop was reached; negative if the gate is behind that loop."""
        assert self.commit is not None
        return -self.commit.activation.heads if self.step.behind else self.commit.activation.heads

    def has_left(self, frame: FrameType) -> bool:
        """Return whether the loop that the latest boundary is in is over."""
        return self.commit is not None and self.commit.activation not in self.tracker.around(frame)

    def entering(self, activation: Activation, depth: int) -> None: ...
    def made(self, activation: Activation, depth: int) -> None:
        activation.made_mark = len(self.records.log)
        self.draws.watch_cycles(activation.iterator)

    def before_draw(self, iterator: Any) -> Any:
        if not (self.capturing and self.draws.recording and last_draw.is_drawn_anew(iterator)):
            return None
        mark = len(self.records.log)
        began = len(self.draws.began)
        found = self.guard.tell(last_draw.before_draw, iterator, self.draws.track_of)
        return None if found is None else found._replace(mark=mark, began=began)

    def at_head(self, activation: Activation, depth: int) -> None:
        if not self.capturing:
            self.updates.gate.at_head_unprotected()
            self.start_step()
            return
        if torch.is_inference_mode_enabled():
            return  # no gradients can come of this loop: it does not train
        if self.updates.early.pending and self.updates.gate.at_head(activation):
            return
        if self.late_forwards.seen:
            self.late_forwards.confirm()
        try:
            at_boundary = self._reach(activation, depth)
        except Exception as error:
            if self.shadow is not None:
                raise
            if not self.tracker.boundary_sites and not self.step.stepped:
                self.commit = None  # a loop of set-up, with half-made objects in sight?
                self._not_captured = error
            elif self.guard.takes(error):
                self.start_step()
            else:
                raise
            return
        if at_boundary:
            self._pause_if_wanted()

    def _reach(self, activation: Activation, depth: int) -> bool:
        """Take a boundary if this is one, or the state at an outer loop's head. Return whether it was a boundary."""
        self.left.pass_over()
        if activation.heads == 1:
            activation.first_mark = len(self.records.log)
        self.phases.head(activation, self.tracker.stack)
        head = self.training.at_head(activation, depth, self.commit)
        if head is LoopHead.AROUND:
            self.records.cut(activation.first_mark)
        activation.head_mark = len(self.records.log)
        if head.is_written:
            self.left.let_go(activation.frame)  # before the walk: the end of an object may change the script's state
        began_s = time.perf_counter()
        activation.head = self.writer.head(activation) if head.is_written else b""
        if head is LoopHead.MAY_BE_AROUND:
            self.training.has_looked(time.perf_counter() - began_s)
        return head.is_boundary and self.take_boundary(activation, self.step.gates_passed)

    def stands_at(self, commit: BoundarySnapshot) -> None:
        """Make `commit` the latest boundary."""
        self.commit = commit
        self._not_captured = None

    def stop_capturing(self) -> None:
        """Go on unprotected: there is no boundary at which the rank could be replaced."""
        self.capturing = False
        self.commit = None

    def let_go(self) -> None:
        """Forget the objects of the script: they are its own again."""
        self.trees = ModuleTrees(queues=self.trees.queues, led=self.trees.led)
        self.gradients = KeptGradients()

    def begin_trees_anew(self) -> None:
        """Forget what earlier boundaries knew of the modules."""
        self.trees = self.trees.anew()

    def protects_this_step(self) -> bool:
        """Return whether there is a gate in front of the step that begins: none before the first boundary."""
        if self.commit is None and self.capturing:
            if self._not_captured is None:
                return False
            self.give_up(self._not_captured)  # it was the training loop
        return True

    def start_step(self) -> None:
        """Prepare for the iteration that begins at a loop's head, whether the head becomes a boundary or not."""
        self.collective_side.at_head()
        self.updates.begin_iteration()
        if self.numbers is not None:
            self.numbers.begin_step()
        self.step.reached_head()
        self.late_forwards.seen = False
        self.left.place = ""

    def _pause_if_wanted(self) -> None:
        assert self.commit is not None
        if self.faults is not None:
            self.faults.at("head")
        if self.hold is not None:
            self.hold.at(self.commit)
        if self.keeper is not None and self.shadow is None:
            self.keeper.meet_at_head()
        may_stand = self.shadow is None and not self.training.stands_in(self.commit.activation)
        if may_stand and self.recovery.wanted_at_head(self.commit.boundary):
            self.recovery.stand(StandingPosition.HEAD, None)
            self.gradients.begin_again(self.commit.state, self.commit.boundary)

    def inject(self, phase: str, step: int | None = None) -> None:
        """Inject the fault that is ordered for `phase`.

        `step`: the one that the phase belongs to, if not the step that is being done.
        """
        if self.faults is not None and self.faults.armed and self.shadow is None and self.records.answers is None:
            self.faults.at(phase, step)

    def step_now(self) -> int:
        """Return the number of the step that is being done, from 1."""
        step = self.step
        is_past = step.is_past_gate
        after = step.position is StepPosition.AFTER
        if after and self.on_training_thread() and self.has_left(sys._getframe(1)):
            is_past = step.behind or (step.astray and self.training.step_stack[-1] in self.tracker.stack)
        return step.gates_passed if is_past else step.gates_passed + 1

    # Helpers.

    def ddp_built(self, wrapped: torch.nn.parallel.DistributedDataParallel) -> None:
        self.layouts.built(wrapped)
        self.reporter.ddp_built(wrapped, caller(sys._getframe(1)))

    def on_training_thread(self) -> bool:
        return threading.get_ident() == self._main

    def takes_part(self) -> bool:
        return self.tracker.live and threading.get_ident() == self._main
