"""What a rank does while a migration runs: comes loose, says where it stands, follows the plan, goes on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchrelay.protocol.errors import ChannelClosedError
from torchrelay.protocol.exhaustive import assert_never
from torchrelay.protocol.messages import (
    Abandon,
    Commit,
    CommunicationFailed,
    CopyJournals,
    Interrupt,
    KeepCopies,
    KeepFile,
    LiftGates,
    MigrationOrder,
    NumbersDecided,
    PassGate,
    Plan,
    QuiesceAnswer,
    QuiesceAt,
    QuiesceDecided,
    Rebuild,
    Resumed,
    SaveCheckpoint,
    Serve,
    SwitchOrder,
    TakeCopy,
)
from torchrelay.protocol.words.positions import RankPhase, StandingPosition
from torchrelay.shim.agent_link.link import AgentLink
from torchrelay.shim.comm.generations.communication_failure import is_communication_failure
from torchrelay.shim.comm.generations.generation_store import serve_store
from torchrelay.shim.observe.failed_communicators import NEWS_S
from torchrelay.shim.recovery.generation_switch import GenerationSwitch, NextMove, Superseded
from torchrelay.shim.script.guard import reason_of
from torchrelay.shim.script.rewind import Rewind
from torchrelay.shim.tensors.inference import outside_inference

if TYPE_CHECKING:
    from torchrelay.shim.step.engine import Engine

PATIENCE_S = 60.0
"""How long a rank whose communication failed waits to hear of a migration, before the failure is the script's own."""


class SurvivorRecovery:
    """Orders arrive on the link's thread; the training thread follows them in `stand`."""

    def __init__(self, engine: Engine, link: AgentLink) -> None:
        self._engine = engine
        self._link = link
        self._orders: queue.SimpleQueue[SwitchOrder | Interrupt | CopyJournals | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._announced = self._abandoned = 0
        self._reason = ""
        self._news = threading.Condition(self._lock)
        self._quiesce: QuiesceAt | None = None
        self._decided: bool | None = None
        self._agreed: int | None = None
        """The generation for which the training thread is about to stand at the head of a step, as all have agreed."""
        self.rewinding: Rewind | None = None
        self.standing = False
        """Whether the rank stands for a migration; it does so to the end where that fails."""
        self._stores: dict[int, tuple[Any, int]] = {}
        self._phase = 0
        """In which the training thread came to a stand."""
        self._going_back: tuple[GenerationSwitch, BaseException | None] | None = None
        """What is followed further at the head of the step, and what failed in the step."""

    def handle(self, order: MigrationOrder) -> None:
        """Handle an order, on the link's thread."""
        match order:
            case Interrupt():
                self._interrupt(order)
            case QuiesceAt():
                self._answer(order)
            case QuiesceDecided(quiesce_id, go):
                self._take_decision(quiesce_id, go)
            case Abandon():
                self._abandon(order)
            case CopyJournals():
                self._engine.journal.copies.assign(order)
                self._orders.put(order)  # a rank that stands has nothing better to do
            case LiftGates(reason):
                self._engine.comms.lift_gates(reason)
            case NumbersDecided():
                if self._engine.numbers is not None:
                    self._engine.numbers.decided(order)
            case KeepCopies() | TakeCopy():
                self._copy(order)
            case (
                Serve() | Plan() | Rebuild() | SaveCheckpoint() | KeepFile() | Commit() | PassGate()
            ):  # the training thread follows, where it stands
                self._orders.put(order)
            case _:
                assert_never(order)

    def _interrupt(self, order: Interrupt) -> None:
        with self._news:
            if order.generation <= self._announced:
                return
            self._reason = order.reason
            self._announced = order.generation
            self._quiesce = None
            self._decided = None
            self._news.notify_all()
        self._engine.comms.break_all()
        self._engine.comms.waits.watch(order.generation)
        if self._engine.keeper is not None:
            self._engine.keeper.interrupted(order.generation)
        self._orders.put(order)

    def _take_decision(self, quiesce_id: int, go: bool) -> None:
        with self._news:
            if self._quiesce is not None and self._quiesce.quiesce_id == quiesce_id:
                self._decided = go
                if not go:
                    self._quiesce = None
                self._news.notify_all()

    def _abandon(self, order: Abandon) -> None:
        with self._news:
            self._abandoned = max(self._abandoned, order.generation)
            if self._quiesce is not None and self._quiesce.generation == order.generation:
                self._quiesce = None
                self._decided = False
            self._news.notify_all()
        self._engine.comms.break_new(order.generation)
        self._orders.put(order)

    def _copy(self, order: KeepCopies | TakeCopy) -> None:
        keeper = self._engine.keeper
        own = self._engine.own
        if keeper is not None:
            if isinstance(order, KeepCopies):
                keeper.assign(order)
            else:
                keeper.take(order)
        if own is not None and isinstance(order, KeepCopies):
            own.assign(order.own)

    def _answer(self, order: QuiesceAt) -> None:
        with self._news:
            commit = self._engine.commit
            now = commit.boundary if commit is not None else -1
            accepted = now < order.boundary and self._announced <= self._engine.comms.now.number
            if accepted:
                self._quiesce = order
                self._decided = None
        self._link.send(QuiesceAnswer(order.quiesce_id, accepted, now))

    def interrupted(self) -> bool:
        """Return whether a newer generation than the present communicators' was announced."""
        return self._announced > self._engine.comms.now.number

    @property
    def announced(self) -> int:
        """Return the newest generation that this rank has heard of."""
        return max(self._announced, self._engine.comms.now.number)

    def wake(self) -> None:
        with self._news:
            self._news.notify_all()

    def agent_gone(self) -> None:
        """Stop waiting for orders: the agent is gone, and will not say how a migration goes on."""
        self._orders.put(None)
        self.wake()

    def wait_until(self, done: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Return when `done`, when a newer generation is announced, when the agent is gone, or after the timeout."""
        with self._news:
            self._news.wait_for(lambda: done() or self.interrupted() or self._link.lost, timeout_s)

    def has_announced(self, generation: int) -> bool:
        """Return whether a generation newer than `generation` was announced: the communicators of `generation` are broken then."""
        return self._announced > generation

    def expect_news(self, generation: int) -> None:
        """Wait after a communication of that generation has failed.

        Returns when a newer one is announced, or is there, or patience ends.
        """
        with self._news:
            self._news.wait_for(
                lambda: self._announced > generation or self._engine.comms.now.number > generation or self._link.lost,
                PATIENCE_S,
            )

    def wanted_at_head(self, boundary: int) -> bool:
        """Return, at the head of the training loop, whether the rank has to stand still here."""
        with self._news:
            while (quiesce := self._quiesce) is not None and boundary >= quiesce.boundary:
                if not self._is_decided(quiesce):
                    break
                if self._decided and self._quiesce is quiesce:
                    self._agreed = quiesce.generation
                    self._quiesce = None
                    self._decided = None
                    return True
            return self.interrupted()

    def _is_decided(self, quiesce: QuiesceAt) -> bool:
        """Return whether something has become of this question before patience ends. Called with `_news` held.

        A later step may be asked for before this thread has seen that the answer was no: what holds then is not said of this one.
        """

        def over() -> bool:
            return self._quiesce is not quiesce or self._decided is not None

        self._news.wait_for(lambda: over() or self.interrupted() or self._link.lost, PATIENCE_S)
        return over()

    def _generation(self, error: BaseException | None) -> int:
        """Return the generation to stand for. Raises `error` if none is announced in time."""
        with self._news:
            agreed = self._agreed
            self._agreed = None
            if error is None and agreed is not None:  # given up meanwhile or not: the orders of that generation say
                return max(agreed, self._announced)
            if not self._hear(error) or self._link.lost:
                raise error if error is not None else RuntimeError("the torchrelay agent is gone")
            return self._announced

    def _hear(self, error: BaseException | None) -> bool:
        """Return whether a generation is announced, or the agent is gone, before patience ends. Called with `_news` held.

        Where a communication has failed and no rank is lost, the controller hears of it: it can begin one.
        """

        def heard() -> bool:
            return self.interrupted() or self._link.lost

        if error is None or not is_communication_failure(error):
            return self._news.wait_for(heard, PATIENCE_S)
        if not self._news.wait_for(heard, NEWS_S):
            self._link.send(CommunicationFailed(reason_of(error), NEWS_S))
        return self._news.wait_for(heard, PATIENCE_S - NEWS_S)

    def stand(self, position: StandingPosition, error: BaseException | None) -> bool:
        """Stand still until the migration is over, or this rank's part of it has to be done elsewhere.

        Returns whether the rank has to go back to its boundary. Raises `error` if this is no migration.
        """
        engine = self._engine
        phase = engine.journal.phase
        self.standing = True
        engine.phase(RankPhase.STANDING)
        generation = self._generation(error)
        self._phase = phase
        with outside_inference():  # the script may reduce its losses in it: a new reducer would be of no use behind it
            return self._follow(GenerationSwitch(engine, self, generation, position, str(error or "")), error)

    def _follow(self, attempt: GenerationSwitch, error: BaseException | None) -> bool:
        """Follow the generation to its commit, or until the rank is to go back: `gone_back` follows it further from there."""
        while True:
            try:
                action, redone = attempt.follow()
            except Superseded:
                attempt = attempt.anew(self._announced)
                continue
            if action is not NextMove.ABANDONED:
                break
            if error is None:
                action = NextMove.GO_ON
                break
            attempt = attempt.anew(self._generation(error))
        if action is NextMove.GO_BACK_FIRST:
            self._going_back = attempt, error
            return True
        self._engine.journal.phase = self._phase
        self.standing = False
        self._engine.alive()
        if action is not NextMove.PASS_GATE:
            self._link.send(Resumed(attempt.generation, redone))
        return action is NextMove.REWIND

    def gone_back(self, failure: Exception | None) -> None:
        """Follow the migration on from the head of the step, or from `failure` if the rank could not get there.

        Returns when the migration is committed. Raises `failure` where no other rank waits for this one, and what failed in the
        step where no generation follows.
        """
        under_way = self._going_back
        self._going_back = None
        if under_way is not None:
            attempt, error = under_way
            attempt.gone_back(failure)
            self._follow(attempt, failure or error)
        elif failure is not None:
            raise failure

    def next_order(self, generation: int) -> SwitchOrder:
        """Return the next order of this generation. Raises Superseded when a newer one was announced."""
        while True:
            order = self.raw_order()
            if isinstance(order, Interrupt):
                if order.generation > generation:
                    raise Superseded
            elif getattr(order, "generation", generation) == generation:
                return order

    def raw_order(self) -> SwitchOrder | Interrupt:
        """Return the next order, whatever its generation. Raises ChannelClosedError when the agent is gone."""
        while isinstance(order := self._orders.get(), CopyJournals):
            self._engine.journal.copies.catch_up()
        if order is None:
            raise ChannelClosedError("the torchrelay agent is gone in the middle of a migration")
        return order

    def is_abandoned(self, generation: int) -> bool:
        return self._abandoned >= generation

    def is_over(self, generation: int) -> bool:
        return self._announced > generation or self.is_abandoned(generation)

    def is_of_the_past(self, generation: int, error: Exception) -> bool:
        """Return whether the error comes from the loss of another rank, so that the generation is, or will soon be, over."""
        of_a_peer = is_communication_failure(error) or isinstance(error, ConnectionError | ChannelClosedError)
        with self._news:
            self._news.wait_for(lambda: self.is_over(generation) or self._link.lost, NEWS_S if of_a_peer else 0.0)
            return self.is_over(generation)

    def free_waits(self, generation: int) -> None:
        """Free threads that wait for a broken communicator.

        A planned generation leaves the one before whole until it stands.
        """
        if self._announced >= generation:
            self._engine.comms.waits.free_all()

    def store(self, generation: int) -> tuple[str, int]:
        """Return where this process would host the store of that generation."""
        if generation not in self._stores:
            self._stores = {generation: serve_store()}
        return self._engine.comms.address, self._stores[generation][1]
