"""What a rank does while a migration runs: comes loose, says where it stands, follows the plan, goes on."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchrelay.protocol.addresses import bind_address
from torchrelay.protocol.errors import ChannelClosedError, TorchrelayError, UnsupportedError
from torchrelay.protocol.messages import (
    Abandon,
    CheckpointSaved,
    Commit,
    CopyJournals,
    FilesKept,
    Interrupt,
    KeepCopies,
    KeepFile,
    NumbersDecided,
    OrderFailed,
    Plan,
    QuiesceAnswer,
    QuiesceAt,
    QuiesceDecided,
    Rebuild,
    Rebuilt,
    Resumed,
    SaveCheckpoint,
    Serve,
    Serving,
    ShimOrder,
    Standing,
    TakeCopy,
    Verified,
)
from torchrelay.shim import collective_records, kept_files, payload
from torchrelay.shim.adapters import fsdp2, pipelining, wrappers
from torchrelay.shim.adapters.dtensor import local
from torchrelay.shim.capture import device
from torchrelay.shim.comms import is_communication_failure, serve_store
from torchrelay.shim.rewind import Rewind

if TYPE_CHECKING:
    from torchrelay.shim.engine import Engine
    from torchrelay.shim.link import AgentLink
    from torchrelay.shim.transfer import Donor

NEWS_S = 10.0
"""A connection breaks before it is told that its other end is lost: until then who notices is not the one that failed."""
PATIENCE_S = 60.0
"""How long a rank whose communication failed waits to hear of a migration, before the failure is the script's own."""
SERVE_S = 600.0
"""How long a donor keeps its tensor channel open; the controller's deadlines are far shorter."""


class _Superseded(Exception):
    """A newer generation was announced while this one was being followed."""


class Recovery:
    """Orders arrive on the link's thread; the training thread follows them in `stand`."""

    def __init__(self, engine: Engine, link: AgentLink) -> None:
        self._engine, self._link = engine, link
        self._orders: queue.SimpleQueue[ShimOrder | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._announced = 0
        self._reason = ""
        self._news = threading.Condition(self._lock)
        self._quiesce: QuiesceAt | None = None
        self._decided: bool | None = None
        self.rewinding: Rewind | None = None
        self._stores: dict[int, tuple[Any, int]] = {}

    def handle(self, order: ShimOrder) -> None:
        """On the link's thread."""
        if isinstance(order, Interrupt):
            with self._news:
                if order.generation <= self._announced:
                    return
                self._announced, self._reason = order.generation, order.reason
                self._quiesce, self._decided = None, None
                self._news.notify_all()
            self._engine.comms.break_all()
            self._engine.comms.waits.watch(order.generation)
            if self._engine.keeper is not None:
                self._engine.keeper.interrupted()
            self._orders.put(order)
        elif isinstance(order, QuiesceAt):
            self._answer(order)
        elif isinstance(order, QuiesceDecided):
            with self._news:
                if self._quiesce is not None and self._quiesce.quiesce_id == order.quiesce_id:
                    self._decided = order.go
                    if not order.go:
                        self._quiesce = None
                    self._news.notify_all()
        elif isinstance(order, Abandon):
            with self._news:
                if self._quiesce is not None and self._quiesce.generation == order.generation:
                    self._quiesce, self._decided = None, False
                    self._news.notify_all()
            self._orders.put(order)
        elif isinstance(order, CopyJournals):
            self._engine.journal.copies.assign(order)
            self._orders.put(order)  # a rank that stands has nothing better to do
        elif isinstance(order, NumbersDecided):
            if self._engine.numbers is not None:
                self._engine.numbers.decided(order)
        elif isinstance(order, (KeepCopies, TakeCopy)):
            keeper = self._engine.keeper
            if keeper is not None:
                keeper.assign(order) if isinstance(order, KeepCopies) else keeper.take(order)
        else:
            self._orders.put(order)

    def _answer(self, order: QuiesceAt) -> None:
        with self._news:
            commit = self._engine.commit
            now = commit.boundary if commit is not None else -1
            accepted = now < order.boundary and self._announced <= self._engine.comms.now.number
            if accepted:
                self._quiesce, self._decided = order, None
        self._link.send(QuiesceAnswer(order.quiesce_id, accepted, now))

    def interrupted(self) -> bool:
        """Whether a newer generation than the present communicators' was announced."""
        return self._announced > self._engine.comms.now.number

    @property
    def announced(self) -> int:
        """The newest generation that it has heard of."""
        return max(self._announced, self._engine.comms.now.number)

    def wake(self) -> None:
        with self._news:
            self._news.notify_all()

    def agent_gone(self) -> None:
        """Nobody will say any more how a migration goes on."""
        self._orders.put(None)
        self.wake()

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Returns when `done`, when a newer generation is announced, or when the agent is gone."""
        with self._news:
            self._news.wait_for(lambda: done() or self.interrupted() or self._link.lost)

    def wanted_at_head(self, boundary: int) -> bool:
        """At the head of the training loop: whether the rank has to stand still here."""
        with self._news:
            quiesce = self._quiesce
            if quiesce is not None and boundary >= quiesce.boundary:
                self._news.wait_for(
                    lambda: self._decided is not None or self.interrupted() or self._link.lost, PATIENCE_S
                )
                if self._decided and self._quiesce is not None:
                    return True
            return self.interrupted()

    def _generation(self, error: BaseException | None) -> int:
        """The generation to stand for. Raises `error` if none is announced in time."""
        with self._news:
            if error is None and self._decided and self._quiesce is not None:
                generation = self._quiesce.generation
                self._quiesce, self._decided = None, None
                return max(generation, self._announced)
            if not self._news.wait_for(lambda: self.interrupted() or self._link.lost, PATIENCE_S) or self._link.lost:
                raise error if error is not None else RuntimeError("the torchrelay agent is gone")
            return self._announced

    def stand(self, position: str, error: BaseException | None) -> str:
        """Returns what the rank does next: `stay`, `rewind` or `forward`. Raises `error` if this is no migration."""
        engine = self._engine
        phase = engine.journal.phase
        engine.phase("standing")
        generation = self._generation(error)
        while True:
            try:
                action, redone = _Attempt(engine, self, generation, position, str(error or "")).follow()
            except _Superseded:
                generation = self._announced
                continue
            if action != "abandoned":
                break
            if error is None:
                action = "stay"
                break
            generation = self._generation(error)
        engine.journal.phase = phase
        engine.alive()
        self._link.send(Resumed(generation, redone))
        return action

    def next_order(self, generation: int) -> ShimOrder:
        """Raises _Superseded when a newer generation was announced."""
        while True:
            order = self.raw_order()
            if isinstance(order, Interrupt):
                if order.generation > generation:
                    raise _Superseded
            elif getattr(order, "generation", generation) == generation:
                return order

    def raw_order(self) -> ShimOrder:
        """The next order, whatever its generation. Raises ChannelClosedError when the agent is gone."""
        while isinstance(order := self._orders.get(), CopyJournals):
            self._engine.journal.copies.catch_up()
        if order is None:
            raise ChannelClosedError("the torchrelay agent is gone in the middle of a migration")
        return order

    def is_over(self, generation: int) -> bool:
        return self._announced > generation

    def is_of_the_past(self, generation: int, error: Exception) -> bool:
        """Whether it comes from the loss of another rank, so that a newer generation is, or will soon be, announced."""
        of_a_peer = is_communication_failure(error) or isinstance(error, ConnectionError | ChannelClosedError)
        with self._news:
            self._news.wait_for(lambda: self.is_over(generation) or self._link.lost, NEWS_S if of_a_peer else 0.0)
            return self.is_over(generation)

    def free_waits(self, generation: int) -> None:
        """Of threads that wait for a broken communicator. A planned generation leaves the one before whole until it stands."""
        if self._announced >= generation:
            self._engine.comms.waits.free_all()

    def store(self, generation: int) -> tuple[str, int]:
        """Where this process would host the store of that generation."""
        if generation not in self._stores:
            self._stores = {generation: serve_store()}
        return self._engine.comms.address, self._stores[generation][1]


class _Attempt:
    """One generation, followed from Standing to Commit or Abandon."""

    def __init__(self, engine: Engine, recovery: Recovery, generation: int, position: str, detail: str) -> None:
        self._engine, self._recovery, self._link = engine, recovery, engine.link
        self._generation, self._position, self._detail = generation, position, detail
        self._plan: Plan | None = None
        self._donors: list[Donor] = []
        self._rebuilt = False

    def follow(self) -> tuple[str, int]:
        try:
            self._say()
            while True:
                order = self._recovery.next_order(self._generation)
                if isinstance(order, Commit):
                    return self._committed()
                if isinstance(order, Abandon):
                    return self._abandoned()
                self._carry_out(order)
        except _Superseded:
            self._drop()
            raise
        finally:
            for donor in self._donors:
                donor.close()

    def _inject(self, phase: str) -> None:
        commit, faults = self._engine.commit, self._engine.faults
        if faults is not None and commit is not None:
            faults.in_migration(phase, commit.boundary + 1)

    def _say(self) -> None:
        self._inject("prepare")
        engine = self._engine
        host, port = self._recovery.store(self._generation)
        boundary = engine.commit.boundary if engine.commit is not None else -1
        log = tuple(engine.records.after)
        self._link.send(
            Standing(
                self._generation,
                boundary,
                engine.gates_passed,
                self._position,
                self._detail[:200],
                host,
                port,
                payload.dump(log),
                len(log),
                engine.layouts.as_text(max(boundary, engine.gates_passed)),
                engine.updates.late_now(),
                engine.place() if boundary == engine.gates_passed else "",
            )
        )

    def _carry_out(self, order: ShimOrder) -> None:
        try:
            if isinstance(order, Serve):
                self._serve(order)
            elif isinstance(order, Plan):
                self._plan = order
            elif isinstance(order, Rebuild):
                self._rebuild(order)
            elif isinstance(order, SaveCheckpoint):
                self._save(order)
            elif isinstance(order, KeepFile):
                self._keep(order)
        except (RuntimeError, OSError, TorchrelayError) as error:
            if self._recovery.is_of_the_past(self._generation, error):
                raise _Superseded from error
            reason = f"{type(error).__name__}: {error}"
            self._link.send(OrderFailed(self._generation, type(order).__name__, reason[:500]))

    def _serve(self, order: Serve) -> None:
        from torchrelay.shim.transfer import Donor

        commit = self._engine.commit
        assert commit is not None
        self._inject("transfer")
        self._engine.updates.take_back_early(order.boundary)
        tensors = self._engine.replicas.tensors(commit, order.boundary)
        if self._position == "after":
            tensors |= {path: local(g) for path, g in device.gradients(commit.state).items()}
        donor = Donor(
            tensors,
            bind_host=bind_address(self._engine.comms.address),
            generation=order.generation,
            token=order.token,
            peer_host=order.peer_host,
            deadline_s=SERVE_S,
            log=_say_on_stderr,
        )
        self._donors.append(donor)
        self._link.send(Serving(order.generation, self._engine.comms.address, donor.start()))

    def _rebuild(self, order: Rebuild) -> None:
        engine, started = self._engine, time.monotonic()
        self._rebuilt = True
        self._inject("rebuild")
        self._check_wrappers()
        self._recovery.free_waits(self._generation)
        fsdp2.reset()
        pipelining.reset(order.target)
        engine.comms.rebuild(order.generation, order.store_host, order.store_port, self._recovery.is_over)
        engine.layouts.prepare_survivor(engine.wrapped, order.target, engine.comms.lend_name)
        self._link.send(Rebuilt(order.generation, time.monotonic() - started))
        self._inject("verify")
        engine.comms.verify(order.target)
        self._link.send(Verified(order.generation))

    def _check_wrappers(self) -> None:
        """Raises UnsupportedError where a wrapper was interrupted that cannot be put back."""
        commit = self._engine.commit
        modules = (m for root in (commit.state.roots if commit is not None else ()) for m in root.modules())
        if self._position != "head" and any(map(wrappers.is_fsdp1, modules)):
            raise UnsupportedError("FullyShardedDataParallel was interrupted in its step: it cannot be put back")

    def _save(self, order: SaveCheckpoint) -> None:
        from torchrelay.shim import tensor_files

        commit = self._engine.commit
        assert commit is not None
        self._engine.updates.take_back_early(order.target)
        size = (
            tensor_files.save(Path(order.directory), self._engine.replicas.tensors(commit, order.target))
            if order.save_tensors
            else 0
        )
        self._link.send(CheckpointSaved(order.generation, size))

    def _keep(self, order: KeepFile) -> None:
        kept_files.keep(Path(order.directory), order.name, order.data, order.whole)
        if order.last:
            self._link.send(FilesKept(order.generation))

    def _committed(self) -> tuple[str, int]:
        assert self._plan is not None
        engine, action = self._engine, self._plan.action
        engine.comms.committed()
        engine.comms.now.number = self._generation
        engine.journal.generation = self._generation
        engine.first_step_due = True
        engine.layouts.migrated(self._plan.target, engine.wrapped)
        if engine.keeper is not None:
            engine.keeper.entered(self._plan.target)
        if action == "forward" and self._plan.collective_log:
            finished = collective_records.furthest(payload.load_logs(self._plan.collective_log))
            engine.records.replay = collective_records.without(finished, engine.records.after)
        return action, int(action == "rewind" and self._position != "head")

    def _abandoned(self) -> tuple[str, int]:
        self._drop()
        self._engine.layouts.abandoned(self._engine.wrapped, self._engine.comms.lend_name)
        return "abandoned", 0

    def _drop(self) -> None:
        if self._rebuilt:
            self._engine.comms.go_back()
            self._rebuilt = False


def _say_on_stderr(text: str) -> None:
    print(f"torchrelay: {text}", file=sys.stderr, flush=True)
