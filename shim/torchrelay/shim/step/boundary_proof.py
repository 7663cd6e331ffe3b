"""A rank proves to itself that it is at the boundary that it says it is at, before others rely on it.

It looks at everything anew, from the script's frames on and with nothing remembered from earlier walks, and compares that with
what was recorded at the boundary. It runs in migrations only, so it may cost as much as the first walk of a run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture import rng
from torchrelay.shim.capture.handlers import SAME
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import undo
from torchrelay.shim.capture.records.compare import Comparison
from torchrelay.shim.capture.records.difference import Difference
from torchrelay.shim.capture.records.encode import EncodedNode, decode, encode_whole
from torchrelay.shim.capture.records.put_entries import CannotPutError, put_entries
from torchrelay.shim.capture.state.host_state import HostState, path_of
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.capture.values.small import TensorValue, take
from torchrelay.shim.capture.walks.walk import Walk
from torchrelay.shim.journal.payload import BoundaryJournal
from torchrelay.shim.journal.script_modules import script_frames
from torchrelay.shim.journal.writer import note_iterators
from torchrelay.shim.observe.origins import where_made
from torchrelay.shim.step import written_meanwhile

if TYPE_CHECKING:
    from torchrelay.shim.step.boundary_snapshot import BoundarySnapshot
    from torchrelay.shim.step.engine import Engine

_NAMED = 3
"""Differences in one message."""

_PUT_BY_THEMSELVES = frozenset({Kind.ATTRS, Kind.DICT, Kind.LIST, Kind.DEQUE})


def check_gone_back(engine: Engine, commit: BoundarySnapshot) -> None:
    """Raise StateMismatchError, naming what is not as it was, if a rank that has gone back is not at its boundary."""
    then = commit.state
    seen = _Seen(decode(encode_whole(then)))

    def compare() -> list[Difference]:
        now = look(engine, commit.activation.frame)

        def same(a: int, b: int) -> bool:
            return then.nodes[a].obj is now.nodes[b].obj

        found = seen.compare(now, Comparison(seen.then, decode(encode_whole(now)), same=same))
        found += _rebound(then, now, seen.partner)
        if not rng.same(rng.capture(), commit.rng):
            found.append(Difference("a random generator of the process", "as at the boundary", "another one"))
        return found

    def undo_again() -> set[str]:
        number_of = {there: number for number, there in seen.partner.items()}
        put = set()
        for difference in seen.found:
            number = number_of.get(difference.node, -1)
            if number < 0 or then.nodes[number].kind not in _PUT_BY_THEMSELVES:
                raise CannotPutError(difference.path)
            was_there = SAME[then.nodes[number].kind](engine.trees, then.nodes[number])
            for place in (number, then.nodes[number].parent):  # its holder, too, where it is another object by now
                if place >= 0 and then.nodes[place].kind in _PUT_BY_THEMSELVES:
                    undo.undo_node(then.nodes[place])
            if not was_there and SAME[then.nodes[number].kind](engine.trees, then.nodes[number]):
                put.add(difference.path)
        return put

    found = written_meanwhile.settled(compare, undo_again)
    if found:
        raise StateMismatchError(
            f"after it went back, this rank is not what it was at boundary {commit.boundary}: {described(found, seen.now)}"
        )


class _Seen:
    """What the last look has found. `then`: what is to be there."""

    def __init__(self, then: Sequence[EncodedNode]) -> None:
        self.then = then
        self.now = HostState()
        self.found: list[Difference] = []
        self.partner: dict[int, int] = {}

    def compare(self, now: HostState, comparison: Comparison) -> list[Difference]:
        self.now = now
        self.found = comparison.run()
        self.partner = comparison.partner
        return self.found

    def put_back(self) -> set[str]:
        """Put what differs back. Return the paths of what was rewritten, as `put_entries`. Raises CannotPutError."""
        return put_entries(self.then, self.now, self.partner, self.found)


def check_entered(
    engine: Engine, journal: BoundaryJournal, trees: Sequence[Any], innermost: FrameType, left: Collection[int]
) -> None:
    """Raise StateMismatchError if a process that joins at a boundary's head is not what the lost rank was there.

    `trees`: of the set-up, as its journal has them. `left`: nodes of the journal that are not carried.
    """
    found, now = differences_on_entry(engine, journal, trees, innermost, left)
    if found:
        raise StateMismatchError(
            f"this process is not what the lost rank was at boundary {journal.boundary}: {described(found, now)}"
        )


def differences_on_entry(
    engine: Engine, journal: BoundaryJournal, trees: Sequence[Any], innermost: FrameType, left: Collection[int]
) -> tuple[list[Difference], HostState]:
    """Return what is not as the journal says, and the state that was looked at. Device tensors are not compared."""
    seen = _Seen(decode(journal.nodes))

    def compare() -> list[Difference]:
        now = look(engine, innermost)
        return seen.compare(now, Comparison(seen.then, decode(encode_whole(now)), trees, left=left))

    found = written_meanwhile.settled(compare, seen.put_back)
    now = seen.now
    records = engine.writer.records_below(now, engine.tracker.stack)
    for number, record in journal.loaders.items():
        there = records.get(seen.partner.get(number, -1))
        if there is not None and there.drawn != record.drawn:
            path = path_of(seen.then, number)
            found.append(Difference(path, f"drawn from {record.drawn} times", f"drawn from {there.drawn} times"))
    for activation, link in zip(engine.tracker.stack, journal.links):
        if (activation.site, activation.entry, activation.heads) != (link.site, link.entry, link.heads):
            found.append(Difference(f"the loop at {link.site}", f"in iteration {link.heads}", f"in {activation.heads}"))
    return found, now


def check_at_gate(
    engine: Engine, nodes: Sequence[bytes], trees: Sequence[Any], innermost: FrameType, left: Collection[int]
) -> None:
    """Raise StateMismatchError if a process is not, at its gate in a shadow step, what the lost rank was there."""
    engine.trees.arrays.settle()  # the step has made some
    assert engine.commit is not None
    boundary = engine.commit.state
    seen = _Seen(decode(nodes))

    def compare() -> list[Difference]:
        now = look(engine, innermost, boundary)

        def read(number: int) -> TensorValue:
            return take(now.nodes[number].obj)

        return seen.compare(now, Comparison(seen.then, decode(encode_whole(now)), trees, left=left, read=read))

    found = written_meanwhile.settled(compare, seen.put_back)
    if found:
        raise StateMismatchError(
            f"this process is not what the lost rank was at its gate: {described(found, seen.now)}"
        )


def look(engine: Engine, innermost: FrameType, boundary: HostState | None = None) -> HostState:
    """Return the rank's host state, by a walk that knows nothing of earlier walks. `innermost`: the frame of the training loop.

    `boundary`: at a gate, the state at the boundary before it.
    """
    trees = ModuleTrees(
        engine.trees.arrays, engine.trees.settings, engine.trees.queues, engine.trees.led, engine.trees.files
    )
    trees.data_origins = engine.trees.data_origins
    note_iterators(engine, trees)
    return Walk(trees, boundary).run(script_frames(innermost), engine.writer.modules.namespaces())


def described(found: Sequence[Difference], now: HostState) -> str:
    """Describe the first differences, each with the line of the script that binds it, where that can be told."""
    named = [f"{difference}{_line(difference, now)}" for difference in found[:_NAMED]]
    more = len(found) - len(named)
    return "; ".join(named) + (f"; and {more} more" if more > 0 else "")


def _line(difference: Difference, now: HostState) -> str:
    if difference.node < 0:
        return ""
    key = difference.key
    node = difference.node
    if key is None:
        key = now.nodes[node].key
        node = now.nodes[node].parent
    file, line = where_made(now, node, key)
    return f" (bound at {file}:{line})" if file else ""


def _rebound(then: HostState, now: HostState, partner: dict[int, int]) -> Iterator[Difference]:
    """Yield parameters and buffers for which a module has other tensors by now: an object that holds the old ones sees no change.

    Tensors that fully_shard exchanges by itself are not among them.
    """
    for number, node in enumerate(then.nodes):
        if node.kind is not Kind.MODULE or number not in partner:
            continue
        there = now.nodes[partner[number]].content.named()
        for place, tensor in node.content.named().items():
            if there.get(place) is not tensor:
                name, _, key = place
                path = then.path(number, *filter(None, name.split(".")), key)
                yield Difference(path, "one tensor", "another one", partner[number], key)
