"""One generation, as a rank that stays follows it: from where it stands to the commit."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from torchrelay.protocol.errors import CheckpointError, DeviceLostError, TorchrelayError, UnsupportedError
from torchrelay.protocol.exhaustive import assert_never
from torchrelay.protocol.machine.addresses import bind_address
from torchrelay.protocol.messages import (
    Abandon,
    BytesDone,
    CheckpointSaved,
    Commit,
    FilesKept,
    KeepFile,
    OrderFailed,
    PassGate,
    Plan,
    Rebuild,
    SaveCheckpoint,
    Serve,
    Serving,
    Standing,
)
from torchrelay.protocol.options.faults import SAVE
from torchrelay.protocol.words.positions import StandingPosition, SurvivorAction
from torchrelay.shim.adapters.parallel import fsdp1
from torchrelay.shim.adapters.tensors.dtensor import local
from torchrelay.shim.agent_link import unfit
from torchrelay.shim.capture import rng
from torchrelay.shim.capture.models import device
from torchrelay.shim.comm import collective_records
from torchrelay.shim.journal import payload
from torchrelay.shim.observe import lost_device
from torchrelay.shim.recovery import new_generation
from torchrelay.shim.replicas import kept_files
from torchrelay.shim.script.guard import reason_of

if TYPE_CHECKING:
    from torchrelay.shim.recovery.survivor import SurvivorRecovery
    from torchrelay.shim.step.boundary_snapshot import BoundarySnapshot
    from torchrelay.shim.step.engine import Engine
    from torchrelay.shim.transfer import Donor

SERVE_S = 600.0
"""How long a donor keeps its tensor channel open; the controller's deadlines are far shorter."""
_Task = Serve | Plan | Rebuild | SaveCheckpoint | KeepFile
"""What is done, and leaves the rank standing."""


class NextMove(enum.Enum):
    """What a rank does next."""

    GO_ON = "it goes on from where it stands"
    REWIND = "it goes back to its boundary"
    GO_BACK_FIRST = "it goes back to its boundary before it goes on with the migration"
    PASS_GATE = "it passes the gate, behind which it has to stand again"
    ABANDONED = "the generation is given up"


class Superseded(Exception):
    """A newer generation was announced while this one was being followed."""


class GenerationSwitch:
    """One generation, followed from Standing to Commit or Abandon, or until the rank has to stand elsewhere."""

    def __init__(
        self, engine: Engine, recovery: SurvivorRecovery, generation: int, position: StandingPosition, detail: str
    ) -> None:
        self._engine = engine
        self._recovery = recovery
        self._link = engine.link
        self.generation = generation
        self._position = position
        self._detail = detail
        self._plan: Plan | None = None
        self._donors: list[Donor] = []
        self._rebuilt = False
        self._is_exchanged = False
        """Whether communicators were to be exchanged since the latest commit. All ranks stand by then, and all are told so."""
        self._said = self._is_back = False
        self._failure: Exception | None = None
        """Why it is nowhere that anybody could go on from."""
        self._due: Rebuild | None = None
        """What a rank that goes back has to do next."""

    def anew(self, generation: int) -> GenerationSwitch:
        """Return a switch for the same rank in a newer generation: a rank that has gone back is there already."""
        following = GenerationSwitch(self._engine, self._recovery, generation, self._position, self._detail)
        following._is_back = self._is_back
        following._failure = self._failure
        following._is_exchanged = self._is_exchanged
        return following

    def follow(self) -> tuple[NextMove, int]:
        """Follow the generation. Return what the rank does next, and how many steps it does again.

        GO_BACK_FIRST: `gone_back`, then `follow` once more.
        """
        action: NextMove | None = None
        try:
            action, redone = self._to_the_end()
            return action, redone
        except Superseded:
            self._drop()
            raise
        finally:
            if action is not NextMove.GO_BACK_FIRST:
                for donor in self._donors:
                    donor.close()

    def gone_back(self, failure: Exception | None) -> None:
        """Note that the rank has left its step and put its state back, or has failed to.

        After a failure the controller has to find another way.
        """
        self._is_back = failure is None
        self._failure = failure

    def _to_the_end(self) -> tuple[NextMove, int]:
        if not self._said:
            self._said = True
            self._say()
        due = self._due
        self._due = None
        if due is not None:
            self._carry_out(due)
        while True:
            order = self._recovery.next_order(self.generation)
            if isinstance(order, Commit):
                return self._committed()
            if isinstance(order, Abandon):
                return self._abandoned()
            if isinstance(order, PassGate):
                return NextMove.PASS_GATE, 0
            if isinstance(order, Rebuild) and self._has_to_go_back():
                try:
                    self._put_wrappers_to_idle()
                except (RuntimeError, UnsupportedError) as error:
                    self._failure = error
                else:
                    self._due = order
                    return NextMove.GO_BACK_FIRST, 0
            self._carry_out(order)

    def _has_to_go_back(self) -> bool:
        """Return whether the rank has to go back first: what it reports as verified has to be the state that it goes on from."""
        wanted = self._plan is not None and self._plan.action == SurvivorAction.REWIND
        return wanted and not self._is_back and self._failure is None

    def _inject(self, phase: str) -> None:
        commit = self._engine.commit
        faults = self._engine.faults
        if faults is not None and commit is not None:
            faults.in_migration(phase, commit.boundary + 1)

    def _say(self) -> None:
        self._inject("prepare")
        engine = self._engine
        host, port = self._recovery.store(self.generation)
        boundary = engine.commit.boundary if engine.commit is not None else -1
        log = tuple(engine.records.after)
        self._link.send(
            Standing(
                self.generation,
                boundary,
                engine.step.gates_passed,
                self._position.value,
                self._detail[:200],
                host,
                port,
                payload.dump(log),
                len(log),
                engine.layouts.as_text(max(boundary, engine.step.gates_passed)),
                engine.updates.late_now(),
                engine.place() if boundary == engine.step.gates_passed else "",
                engine.left.place,
                engine.replicas.not_averaged(),
                has_before=bool(engine.replaced.tensors),
            )
        )

    def _carry_out(self, order: _Task) -> None:
        if self._failure is not None:
            self._failed(order, self._failure)
            return
        try:
            match order:
                case Serve():
                    self._serve(order)
                case Plan():
                    self._plan = order
                case Rebuild():
                    self._rebuild(order)
                case SaveCheckpoint():
                    self._save(order)
                case KeepFile():
                    self._keep(order)
                case _:
                    assert_never(order)
        except DeviceLostError as error:
            unfit.end(self._engine.link, self._engine.log, str(error), by_script=True)
        except (RuntimeError, OSError, TorchrelayError) as error:
            lost_device.end_if_lost(self._engine, error)
            if self._recovery.is_of_the_past(self.generation, error):
                if self._recovery.is_abandoned(self.generation):
                    return  # as the next order says
                raise Superseded from error
            self._failed(order, error)

    def _failed(self, order: _Task, error: Exception) -> None:
        writes = isinstance(order, (SaveCheckpoint, KeepFile))
        unharmed = writes and isinstance(error, (OSError, CheckpointError, UnsupportedError))
        self._link.send(OrderFailed(self.generation, type(order).__name__, reason_of(error), unharmed=unharmed))

    def _serve(self, order: Serve) -> None:
        from torchrelay.shim.transfer import Donor

        commit = self._engine.commit
        assert commit is not None
        self._inject("transfer")
        self._put_wrappers_to_idle()  # what they have gathered is not this rank's alone
        self._engine.updates.take_back_early(order.boundary)
        tensors = self._tensors_at(commit, order.boundary)
        if self._position in (StandingPosition.AFTER, StandingPosition.LEFT):
            tensors |= {path: local(g) for path, g in device.gradients(commit.state).items()}
        if order.behind_update and order.boundary == self._engine.step.gates_passed:
            held = self._engine.updates.gradients.tensors()
            tensors |= {f"{device.UPDATED}{device.GRADIENT}{path}": gradient for path, gradient in held.items()}
        donor = Donor(
            tensors,
            bind_host=bind_address(self._engine.comms.address),
            generation=order.generation,
            token=order.token,
            peer_host=order.peer_host,
            deadline_s=SERVE_S,
            log=self._engine.log.say,
            protection=self._engine.protection,
            identity=self._link.identity,
        )
        self._donors.append(donor)
        self._link.send(Serving(order.generation, self._engine.comms.address, donor.start()))

    def _tensors_at(self, commit: BoundarySnapshot, boundary: int) -> dict[str, torch.Tensor]:
        """Return all tensors that another process may need of this one."""
        engine = self._engine
        tensors = engine.replicas.to_give(commit, boundary) | engine.saves.tensors() | engine.records.to_give()
        if boundary == commit.boundary:
            tensors |= engine.replaced.to_give()
        if boundary == engine.step.gates_passed:
            tensors |= {f"{device.UPDATED}{path}": copy for path, copy in engine.updates.as_updated().items()}
            if effects := engine.updates.effects.latest():
                tensors[device.EFFECTS] = rng.byte_tensor(effects)
        return tensors

    def _rebuild(self, order: Rebuild) -> None:
        self._rebuilt = True
        self._is_exchanged = True
        new_generation.rebuild(
            self._engine,
            order,
            self._inject,
            prepare=self._come_loose,
            connected=lambda: self._engine.layouts.prepare_survivor(order.target),
            verified=lambda: self._compare(order.target),
        )

    def _come_loose(self) -> None:
        self._put_wrappers_to_idle()
        self._recovery.free_waits(self.generation)
        self._engine.saves.exchange_begins()

    def _compare(self, target: int) -> None:
        if self._engine.commit is not None:
            self._engine.replicas.before_commit(self._engine.commit, target)

    def _put_wrappers_to_idle(self) -> None:
        """Let wrappers that were interrupted give up what they have gathered. Raises UnsupportedError, RuntimeError."""
        commit = self._engine.commit
        fsdp1.reset(m for root in (commit.state.roots if commit is not None else ()) for m in root.modules())

    def _save(self, order: SaveCheckpoint) -> None:
        from torchrelay.shim.replicas import tensor_files

        commit = self._engine.commit
        assert commit is not None
        self._put_wrappers_to_idle()  # what they have gathered is not this rank's alone
        self._engine.updates.take_back_early(order.target)
        size = (
            tensor_files.save(
                Path(order.directory),
                self._tensors_at(commit, order.target),
                lambda: self._inject(SAVE),
                lambda done, total: self._link.send(BytesDone(order.generation, done, total)),
            )
            if order.save_tensors
            else 0
        )
        self._link.send(CheckpointSaved(order.generation, size))

    def _keep(self, order: KeepFile) -> None:
        kept_files.keep(Path(order.directory), order.name, order.data, order.whole)
        if order.last:
            self._link.send(FilesKept(order.generation))

    def _committed(self) -> tuple[NextMove, int]:
        assert self._plan is not None
        engine = self._engine
        goes_back = self._plan.action == SurvivorAction.REWIND
        if engine.saves.are_under_way():
            engine.comms.break_previous()
        back_to = engine.commit.saves if goes_back and engine.commit is not None else None
        new_generation.commit(engine, self.generation, self._plan, back_to)
        engine.layouts.migrated(self._plan.target)
        if self._plan.action == SurvivorAction.FORWARD and self._plan.collective_log:
            finished = collective_records.furthest(payload.load_logs(self._plan.collective_log))
            engine.records.catch_up(finished)
        if not goes_back:
            return NextMove.GO_ON, 0
        return NextMove.REWIND, int(self._position is not StandingPosition.HEAD)

    def _abandoned(self) -> tuple[NextMove, int]:
        self._drop()
        if self._engine.keeper is not None:
            self._engine.keeper.abandoned(self.generation)
        # Before that others may not even stand: a reducer made anew in this rank alone would wait for theirs.
        if self._is_exchanged:
            self._engine.layouts.abandoned()
        return NextMove.ABANDONED, 0

    def _drop(self) -> None:
        if self._rebuilt:
            self._engine.comms.go_back()
            self._engine.saves.abandoned()
            self._rebuilt = False
