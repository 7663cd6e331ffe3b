"""What a journal holds: the records that a rank writes and a joiner reads. Pickled, since they are plain Python data.

Those of each step are pickled as `plain` tuples: to pickle an instance of a class takes several times as long.

A journal comes from the job's own processes through its own agent; tensors other than small values are never in it.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torchrelay.protocol.errors import JournalError
from torchrelay.protocol.journals import collective_logs
from torchrelay.shim.capture.records.encode import nodes_in, pickled
from torchrelay.shim.capture.rng import RngState

Plain = tuple[Any, ...]


class EpochBegin(NamedTuple):
    """Where the epoch of a loader that keeps its workers began, if that was not with the workers themselves.

    `now`, `order`: as in LoaderRecord; `workers`: how each of them was, as `capture.iteration.kept_workers` writes it.
    """

    now: RngState
    order: tuple[Any, ...]
    base_seed: int
    workers: tuple[bytes, ...]


class SamplerTurn(NamedTuple):
    """A sampler had been `asked` so many times when it drew from generators that others had used: how these were before."""

    asked: int
    generators: RngState
    order: tuple[Any, ...]


class LoaderRecord(NamedTuple):
    """A data loader's iterator: how often it was drawn from, and what decided the order of its data, and when.

    `created`, `order`: when it was made; `first`: both at the first draw, with what else the samplers had; `before`: generators
    before its last draws, as many as have items that are still in use.
    `loader`: the node of the loader that it was made by, for an iterator that training has put in its place.
    """

    created: RngState
    order: tuple[Any, ...]
    drawn: int
    first: tuple[RngState, tuple[Any, ...], bytes] | None
    before: tuple[RngState, ...]
    loader: int = -1
    epoch: EpochBegin | None = None
    turns: tuple[SamplerTurn, ...] = ()
    data: tuple[Any, ...] = ()
    """Of the data set before the last draws, as data_state.State."""
    shared: tuple[Any, ...] = ()
    """What it had in shared memory when it was made, as shared_memory.Content."""
    mark: bytes = b""
    """Of the item that it has yielded last, where another process has to draw all that came before it."""

    def plain(self) -> Plain:
        created, order, drawn, first, before, loader, epoch, turns, data, shared, mark = self
        then = None if first is None else (tuple(first[0]), *first[1:])
        began = None if epoch is None else (tuple(epoch.now), *epoch[1:])
        asked = [(turn.asked, tuple(turn.generators), turn.order) for turn in turns]
        return tuple(created), order, drawn, then, [*map(tuple, before)], loader, began, asked, data, shared, mark

    @classmethod
    def of(cls, plain: Plain) -> LoaderRecord:
        created, order, drawn, first, before, loader, epoch, asked, data, shared, mark = plain
        then = None if first is None else (RngState(*first[0]), *first[1:])
        began = None if epoch is None else EpochBegin(RngState(*epoch[0]), *epoch[1:])
        states = tuple(RngState(*state) for state in before)
        turns = tuple(SamplerTurn(number, RngState(*generators), order) for number, generators, order in asked)
        return cls(
            RngState(*created), order, drawn, then, states, loader, began, turns, tuple(data), tuple(shared), mark
        )


class LinkRecord(NamedTuple):
    """One loop of the chain from the outermost one to the training loop.

    `heads`: how often its head was reached. `iterator`: a range's own position, or None where items are drawn again.
    `loaders`: the data loader iterators that its own has made, in that order, None for those that are over.
    `head`: host state and generators at its latest head, for all links but the last. `prologue`: results of the collectives
    between the head of the loop around it (or the script's start) and its own first head; `passed`: the training loops that were
    gone through there.
    """

    site: str
    entry: int
    heads: int
    entry_rng: RngState
    item: Any
    iterator: Any
    loaders: tuple[LoaderRecord | None, ...]
    head: bytes
    prologue: tuple[Any, ...]
    passed: tuple[PassedLoop, ...] = ()
    draw: Plain | None = None
    """As last_draw.WrittenDraw: its iterator is put to where it stood before its latest item, and that is drawn anew."""
    first_draw: int = 0
    """So many of the collectives before its first head were called by its iterator, in the first draw."""
    mark: bytes = b""
    """Of a training loop's latest item, where it is not drawn anew so: another process was led to it, and compares what it has.
    Empty where nothing is to be compared."""

    def plain(self) -> Plain:
        site, entry, heads, entry_rng, item, iterator, loaders, *rest = self
        drawn = [None if loader is None else loader.plain() for loader in loaders]
        return site, entry, heads, tuple(entry_rng), item, iterator, drawn, *rest

    @classmethod
    def of(cls, plain: Plain) -> LinkRecord:
        site, entry, heads, entry_rng, item, iterator, loaders, *rest = plain
        drawn = tuple(None if loader is None else LoaderRecord.of(loader) for loader in loaders)
        return cls(site, entry, heads, RngState(*entry_rng), item, iterator, drawn, *rest)


@dataclass(frozen=True)
class PassedLoop:
    """A training loop that is over: its last boundary and, if a step followed that, its gate. `trees`: as in SetUpJournal.

    A joiner goes through its last iteration only. `mark`: how many collectives had been done when it began, since the head of the
    loop around it. `heads`: how often the head of each of its loops had been reached when it was over, from the outermost one.
    """

    site: str
    entry: int
    journal: bytes
    gate: bytes
    trees: tuple[Any, ...]
    mark: int
    heads: tuple[int, ...] = ()


class HeadState(NamedTuple):
    nodes: list[bytes]
    rng: RngState
    saves: dict[str, int]
    """How many async saves had been begun in each group."""
    built: int = 0
    """How many DDP wrappers had been built."""
    groups: int = 0
    """How many process groups had been named."""
    data_mark: int = -1
    """`DataOrigins.mark` of the rank there."""
    loaders: dict[int, LoaderRecord] | None = None
    """As in BoundaryJournal: the loop's body may draw from them before an inner loop begins."""


class BoundaryJournal(NamedTuple):
    boundary: int
    settled: bool
    """Whether the training loop was known by then, or the outermost loop stood in for it."""
    links: list[LinkRecord]
    blocks: list[bytes]
    rng: RngState
    large: tuple[str, ...]
    """Tensors beside model and optimizers that have to come from a donor."""
    loaders: dict[int, LoaderRecord]
    """Loader iterators that the walk reaches, by node: `it = iter(loader)` kept in a variable."""
    iterators: tuple[str, ...]
    """Others that are kept in variables: they cannot be led to their place, so nobody can take over."""
    training: tuple[str, ...]
    """All loops that are known to train, and `around` those around them: where other ranks take boundaries."""
    around: tuple[str, ...]
    turns: dict[str, tuple[int, int]]
    """As in EarlyUpdates."""
    communicating: tuple[str, ...]
    """As in WholeSteps."""
    saves: tuple[Any, ...]
    """As AsyncSaves.journal has it."""
    gradients: bytes
    """As GradientRecord, pickled."""
    written_before_gates: tuple[str, ...]
    """As in EarlyWrites: large tensors that steps write to before their gate."""
    groups: tuple[Plain, ...] = ()
    """As process_group.described: those that this rank is a member of."""
    scripted: bytes = b""
    """As ScriptedCalls has written it."""
    left_by_updates: bytes = b""
    """As UpdateEffects has written it."""
    unproven: tuple[tuple[str, int], ...] = ()
    """As FirstWrites.unproven."""
    quiet: bytes = b""
    """As FirstWrites.quiet."""
    since: int = 0
    """As ReplicaCheck.since."""
    fetching: Plain = ()
    """As FetchingTurns.record has it."""

    def plain(self) -> Plain:
        """Return the plain form, with the lengths of the blocks in their place."""
        boundary, settled, links, blocks, rng, large, loaders, *rest = self
        below = {number: loader.plain() for number, loader in loaders.items()} if loaders else None
        return boundary, settled, [link.plain() for link in links], [*map(len, blocks)], tuple(rng), large, below, *rest

    def in_parts(self) -> list[bytes]:
        """Return the parts whose join `load` reads: the blocks stand behind the rest as they are. Raises PicklingError."""
        return [pickled(self.plain()), *self.blocks]

    @classmethod
    def of(cls, plain: Plain, data: bytes) -> BoundaryJournal:
        boundary, settled, links, sizes, rng, large, loaders, *rest = plain
        begins = [*itertools.accumulate(sizes, initial=len(data) - sum(sizes))]
        blocks = [data[begin:end] for begin, end in itertools.pairwise(begins)]
        below = {number: LoaderRecord.of(loader) for number, loader in loaders.items()} if loaders else {}
        return cls(boundary, settled, [*map(LinkRecord.of, links)], blocks, RngState(*rng), large, below, *rest)

    @property
    def nodes(self) -> list[bytes]:
        return nodes_in(self.blocks)

    def place(self) -> str:
        return place_of(self.links)


def place_of(links: Sequence[Any]) -> str:
    """Return which place this is, of those that can have one boundary's number where one training loop follows the other."""
    around = "|".join(f"{link.site}#{link.entry}@{link.heads}" for link in links[:-1])
    return f"{around}|{links[-1].site}#{links[-1].entry}"


class GateJournal(NamedTuple):
    """What only this rank knows of the step: everything small that is reachable when its gradients are complete."""

    boundary: int
    node_count: int
    """At the gate."""
    nodes: dict[int, bytes]
    """Those that are not as they were at the boundary, whose journal has the others."""
    rng: RngState
    collectives: tuple[Any, ...]
    lost: tuple[str, ...]
    """Tensors of the step that are not in here and are read later, each with the reason: with them, there is no way back."""
    heads: int
    """How often the training loop's head had been reached: iterations without an update can come before it. Negative if the
    gate is behind that loop."""
    unproven: tuple[tuple[str, int], ...] = ()
    """As FirstWrites.at_gate."""
    unread: tuple[tuple[str, int], ...] = ()
    """Paths and nodes of tensors of the step that are not in here either, and that no step was seen to read later."""

    def plain(self) -> Plain:
        boundary, node_count, nodes, rng, *rest = self
        return boundary, node_count, nodes, tuple(rng), *rest

    def written(self) -> bytes:
        """Return the bytes that `load` reads. Raises PicklingError."""
        return pickled(self.plain())

    @classmethod
    def of(cls, plain: Plain, data: bytes) -> GateJournal:
        boundary, node_count, nodes, rng, *rest = plain
        return cls(boundary, node_count, nodes, RngState(*rng), *rest)

    def on(self, boundary: BoundaryJournal) -> list[bytes]:
        """Return all nodes at the gate."""
        before = boundary.nodes
        return [self.nodes[n] if n in self.nodes else before[n] for n in range(self.node_count)]


@dataclass(frozen=True)
class SetUpJournal:
    """`site`, `entry`: the outermost training loop, and how many times it had been entered.

    `trees`: flags, plain attributes and small buffers of each tree of modules, in the order of the walk: see `set_up_trees`.
    `passed`: training loops that were over before it. `young`: some ranks may still be in the last of these, so that a
    joiner may have to enter there.
    """

    site: str
    entry: int
    collectives: tuple[Any, ...]
    trees: tuple[Any, ...]
    passed: tuple[PassedLoop, ...] = ()
    young: bool = False
    outside: bytes = b""
    """As SetUp.snapshot has it; empty where nothing was recorded."""
    texts: dict[str, int] = field(default_factory=dict)
    """As `sites.TEXTS`."""


_IN_EACH_STEP = (BoundaryJournal, GateJournal)


def dump(record: Any) -> bytes:
    return pickle.dumps(record, protocol=pickle.HIGHEST_PROTOCOL)


def load_logs(joined: bytes) -> list[tuple[Any, ...]]:
    """Return the collective logs of several ranks. Raises JournalError, FrameError."""
    return [load(log, tuple) for log in collective_logs.split(joined)]


def load(data: bytes, kind: type) -> Any:
    """Return the record. Raises JournalError if the bytes are not a record of that kind in this version."""
    try:
        record = pickle.loads(data)
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, TypeError) as e:
        raise JournalError(f"the journal cannot be read here: {type(e).__name__}: {e}") from e
    if issubclass(kind, _IN_EACH_STEP) and type(record) is tuple:
        try:
            return kind.of(record, data)
        except (AttributeError, TypeError, ValueError) as e:
            raise JournalError(f"the journal cannot be read here: {kind.__name__} of another version: {e}") from e
    if not isinstance(record, kind):
        raise JournalError(f"expected {kind.__name__} in the journal, found {type(record).__name__}")
    return record
