"""Gives a process that was led to a boundary the recorded host state, so that it stands there as the recorded rank did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.process_groups import process_group
from torchrelay.shim.backends import registry
from torchrelay.shim.capture.values import item_mark
from torchrelay.shim.instrument.activation import Activation
from torchrelay.shim.join.fast_forward import Goal
from torchrelay.shim.join.put_state import put_state
from torchrelay.shim.join.recorded import RecordedPlace
from torchrelay.shim.journal.payload import LinkRecord

if TYPE_CHECKING:
    from torchrelay.shim.step.engine import Engine


def arrive(engine: Engine, goal: Goal, activation: Activation) -> frozenset[int]:
    """All but tensors and random generators. Returns the nodes of its journal that are not carried.

    Raises StateMismatchError.
    """
    journal = goal.journal
    _check_loops(engine, journal.links)
    _check_item(activation.item, journal.links[-1].mark)
    process_group.be_member_of(journal.groups, registry.unconnected)
    engine.fetching.learn(journal.fetching)
    left = put_state(engine, goal.trees, RecordedPlace.at_boundary(journal), activation.frame).left
    engine.trees.data_origins.number_rest()
    if any(link.head for link in journal.links[:-1]):
        engine.writer.trees_of_heads = goal.trees
    engine.draws.expected.clear()
    engine.scripted.take_over(journal.scripted)
    engine.tracker.boundary_sites = set(journal.training)
    engine.training.around = set(journal.around)
    engine.saves.carry(journal.saves)
    engine.updates.early.turns = dict(journal.turns)
    engine.updates.effects.take_over(journal.left_by_updates)
    engine.replicas.take_over(journal)
    engine.updates.whole.communicating |= {*journal.communicating}
    engine.updates.writes.take_over(journal.written_before_gates)
    engine.step.entered(journal.boundary)
    engine.journal.gates_passed = journal.boundary
    on_the_way = (entry for link in journal.links[1:] for entry in link.prologue)
    engine.records.enter_with([*goal.before[0], *on_the_way])
    _marks(engine, goal)
    return left


def _check_loops(engine: Engine, links: Sequence[LinkRecord]) -> None:
    """Where a step is gone through as a shadow, nothing else compares them. Raises StateMismatchError."""
    for activation, link in zip(engine.tracker.stack, links):
        if (activation.site, activation.entry, activation.heads) != (link.site, link.entry, link.heads):
            raise StateMismatchError(
                f"this process came to the place in iteration {activation.heads} of the loop at {link.site}, and the lost "
                f"rank in iteration {link.heads}"
            )


def _check_item(item: Any, mark: bytes) -> None:
    """`item`: that this process was led to; `mark`: as in LinkRecord. Raises StateMismatchError."""
    if mark and item_mark.mark_of(item) != mark:
        raise StateMismatchError(
            "a loop was led to its place here, and yields another item there than in the lost rank"
        )


def _marks(engine: Engine, goal: Goal) -> None:
    mark = len(goal.before[0])
    passed = engine.phases.passed
    links = goal.journal.links
    passed[:] = goal.before[1]
    for activation, link in zip(engine.tracker.stack, links):
        if link is not links[0]:
            mark += len(link.prologue)
            passed += link.passed
        activation.first_mark = activation.head_mark = mark
        activation.made_mark = mark - link.first_draw
        activation.first_passed = len(passed)
