"""A rank goes back to its boundary: everything is put in place as it was there, and proven to be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from torchrelay.protocol.words.positions import RankPhase
from torchrelay.shim.adapters.process_groups import process_group
from torchrelay.shim.capture import rng
from torchrelay.shim.capture.records import undo
from torchrelay.shim.capture.state.filled_queues import check_not_in_doubt
from torchrelay.shim.step import boundary_proof

if TYPE_CHECKING:
    from torchrelay.shim.step.boundary_snapshot import BoundarySnapshot
    from torchrelay.shim.step.engine import Engine


class GoingBack:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def to(self, commit: BoundarySnapshot) -> None:
        """To the head of the training loop, and from there through the rest of the migration. Raises where that is no way on."""
        engine = self._engine
        failure: Exception | None = None
        try:
            self._put_back(commit)
        except Exception as error:  # noqa: BLE001 - whatever it is, this rank is not at its boundary, and must not say so
            failure = error
        engine.recovery.gone_back(failure)
        engine.gradients.begin_again(commit.state, commit.boundary)
        engine.budget.interrupted()
        engine.again.begin(commit.state)
        engine.again.ignore(engine.updates.writes.tensors())
        engine.journal.count = 0  # as in a process that takes over: the ranks' counts are compared
        engine.phase(RankPhase.BODY)

    def _put_back(self, commit: BoundarySnapshot) -> None:
        engine = self._engine
        process_group.forget_later(commit.groups)
        commit.item.put_back(engine.is_state)
        engine.again.leave()
        engine.updates.take_back_early(commit.boundary)
        self._undo(commit)
        engine.gradients.put_back()
        rng.restore(commit.rng)
        engine.scripted.go_back(commit.scripted)
        engine.draws.rewind()
        if engine.set_up is not None:
            engine.set_up.go_back()
        activation = commit.activation
        activation.item = commit.item.again(engine.is_state)
        activation.heads = commit.heads
        activation.head = commit.head
        activation.replay = True
        activation.inner.clear()  # a loop that is entered again is entered for the first time, as in a process that joins
        del engine.tracker.stack[engine.tracker.stack.index(activation) + 1 :]
        engine.records.cut(engine.records.body_mark)
        engine.updates.begin_iteration()
        engine.step.went_back()
        if engine.numbers is not None:
            engine.numbers.begin_step()
        engine.recovery.rewinding = None
        torch.clear_autocast_cache()
        boundary_proof.check_gone_back(engine, commit)

    def _undo(self, commit: BoundarySnapshot) -> None:
        queues = self._engine.trees.queues
        queues.threads.look_also(queues.fillers())
        before = queues.threads.contents()
        undo.undo(commit.state)
        check_not_in_doubt(queues.threads, before, queues.threads.contents())
