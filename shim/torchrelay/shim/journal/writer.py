"""Writes a rank's journal: the set-up, each boundary, each gate."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

from torchrelay.shim.adapters.process_groups import process_group
from torchrelay.shim.capture import rng
from torchrelay.shim.capture.iteration import data_changes, data_content, data_places
from torchrelay.shim.capture.iteration import generator_position as stands
from torchrelay.shim.capture.iteration.loader_order import LoaderIter, loader_of
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records.encode import encode, encode_whole, in_blocks, pickled
from torchrelay.shim.capture.records.set_up_trees import begin_set_up
from torchrelay.shim.capture.state.change_detection import WalkAnew
from torchrelay.shim.capture.state.data_origins import Maker
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.values import item_mark, small
from torchrelay.shim.capture.values.kinds import DATA, Kind
from torchrelay.shim.capture.walks.rewalk import Rewalk
from torchrelay.shim.capture.walks.walk import Walk
from torchrelay.shim.instrument.activation import Activation
from torchrelay.shim.journal import last_draw, payload
from torchrelay.shim.journal.dropped_loaders import DroppedLoaders
from torchrelay.shim.journal.made_loaders import MadeLoaders
from torchrelay.shim.journal.script_modules import ScriptModules, script_frames
from torchrelay.shim.script import sites

if TYPE_CHECKING:
    from torchrelay.shim.step.boundary_snapshot import BoundarySnapshot
    from torchrelay.shim.step.engine import Engine


SHARED_RANDOM = "a data loader whose sampler goes on drawing from random generators that other code draws from, too"
KEPT_WORKERS = "a data loader with persistent_workers after its first epoch"
_RANGE_ITERATORS = (type(iter(range(0))), type(iter(range(1 << 65))))


def plain_range(iterator: Any) -> Any:
    """Return a range's iterator, which can be carried as it is; None for anything else."""
    return iterator if type(iterator) in _RANGE_ITERATORS else None


def note_iterators(engine: Engine, trees: ModuleTrees) -> None:
    """Note, for a walk, the iterators of the running loops, and cycles over data loaders."""
    stack = engine.tracker.stack
    trees.led_cycles = engine.draws.led_cycles()
    trees.of_loops = {id(activation.iterator) for activation in stack}
    trees.data_origins.of_loops = {id(iterator) for activation in stack for iterator in activation.loaders}
    trees.loops[:] = [_state_of_loop(activation.iterator, trees) for activation in stack]


def _state_of_loop(iterator: Any, trees: ModuleTrees) -> Any:
    """Return the iterator, if it goes back by being put to where it stood."""
    return iterator if last_draw.is_drawn_anew(iterator) and stands.is_whole(iterator, trees.queues.go_back()) else None


class Writer:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.modules = ScriptModules()
        self._set_up: payload.SetUpJournal | None = None
        self._young_at = -1
        """The boundary that the set-up's journal was written at, if some ranks may not be in that loop yet."""
        self.trees_of_heads: tuple[bytes, ...] = ()
        """Of the set-up that a lost rank had recorded: what its records of running loops' heads hold the difference to."""
        self.no_way_in: tuple[str, ...] = ()
        """What is at the latest boundary that a joiner could not be led to."""
        self._made_loaders = MadeLoaders()
        self._dropped_loaders = DroppedLoaders()
        self._shapes: set[tuple[Kind, type]] = set()
        self._gradients_written: tuple[Any, bytes] = None, b""
        self.last_bytes = 0
        self.latest: tuple[list[bytes], bytes] = [], b""
        """The latest boundary's journal in parts, and the recording of the set-up that it goes with."""

    def walk(
        self,
        frames: Sequence[FrameType],
        base: HostState | None = None,
        *,
        at_gate: bool = False,
        aside: bool = False,
        within: Collection[int] | None = None,
    ) -> HostState:
        """Return the host state. `base`: the state at the latest boundary, which most of it will be equal to.

        `aside`: it stays the latest. `within`: only these nodes of it are looked at. Raises WalkAnew where that does not do.
        """
        trees = self._engine.trees
        namespaces = self.modules.namespaces()
        if at_gate:
            self._training_has_begun()
            trees.data_origins.fresh_is_made = True
        note_iterators(self._engine, trees)
        if base is not None:
            try:
                if base.has_let_go:
                    raise WalkAnew
                return Rewalk(trees, base, at_gate=at_gate, aside=aside, within=within).run(frames, namespaces)
            except WalkAnew:
                if within is not None:
                    raise
        return Walk(trees, base if at_gate else None).run(frames, namespaces)

    def state_at(self, frame: FrameType, before: HostState | None, boundary: int) -> HostState:
        """Return the state at a boundary in this frame. `before`: that at the boundary before it in the same loop."""
        if boundary > 0:
            self._training_has_begun()
        arrays = self._engine.trees.arrays
        if before is None or arrays.has_more:
            arrays.walked()
            state = self.walk(script_frames(frame))
            self._look_at_data(state)
            return state
        if data_changes.is_due(boundary) or self._engine.draws.data_changes.is_pending:
            self._look_at_data(before)
        return self.walk(script_frames(frame), before)

    def head(self, activation: Activation) -> bytes:
        """Return host state at the head of an outer loop, for joiners that pass it on their way in."""
        goes_on = self._is_set_up_of(self._engine.tracker.stack[0])
        latest = self._engine.commit.state if self._engine.commit is not None else None
        if latest is not None:
            self._look_at_data(latest)
        made = self._engine.trees.data_origins
        made.fresh_is_made = activation.heads > 1
        if activation.data_mark >= 0 and activation.heads > 1:
            made.goes_on(activation.data_mark)
        write = encode if goes_on else encode_whole
        mark = made.mark
        state = self.walk(script_frames(activation.frame), latest if goes_on else None, aside=True)
        if made.mark > mark:
            for outer in itertools.takewhile(lambda each: each is not activation, self._engine.tracker.stack):
                outer.seen_within = mark if outer.seen_within is None else outer.seen_within[0], made.mark
        self.settle_data(state, activation, around=True)
        nodes = write(state)
        loaders = self.records_below(state, self._around(activation))
        return self._head_state([*nodes], rng.capture(), self._engine.saves.begun(), loaders)

    def _around(self, activation: Activation) -> list[Activation]:
        """Return this running loop behind those around it."""
        stack = self._engine.tracker.stack
        return stack[: stack.index(activation) + 1]

    def settle_data(self, state: HostState, activation: Activation, *, around: bool = False) -> None:
        """Settle what is told of data at the head of a loop that was just walked: what is seen later its iterations have made."""
        stack = self._engine.tracker.stack
        origins = self._engine.trees.data_origins
        if activation.heads == 1:
            marks = [outer.data_mark for outer in stack[: stack.index(activation)]]
            data_places.settle(state, origins, max(marks, default=-1), is_known=-1 not in marks)
        activation.data_mark = origins.mark
        data_content.tell(state, origins, self._engine.draws.data_changes, around=around)

    def _training_has_begun(self) -> None:
        self._engine.trees.arrays.settle()
        self._engine.draws.data_changes.settle()

    def _look_at_data(self, state: HostState) -> None:
        """Look at data before a walk: the walk goes into what training has changed below data sets that `state` has."""
        owners = [node.obj for node in state.nodes if node.kind in DATA]
        changes = self._engine.draws.data_changes
        changes.look(owners)
        changes.look_at_made([node.obj for node in state.nodes if node.kind is Kind.DATASET], state.index)

    def _head_state(
        self,
        nodes: list[bytes],
        generators: rng.RngState,
        saves: Mapping[str, int],
        loaders: dict[int, payload.LoaderRecord],
    ) -> bytes:
        built = self._engine.wrapped.built
        named = process_group.named_so_far()
        mark = self._engine.trees.data_origins.mark
        return pickled(payload.HeadState(nodes, generators, dict(saves), built, named, mark, loaders))

    def _is_set_up_of(self, outermost: Activation) -> bool:
        written = self._set_up
        return written is not None and (written.site, written.entry) == (outermost.site, outermost.entry)

    def _write_set_up(self, commit: BoundarySnapshot, links: list[Activation]) -> None:
        engine = self._engine
        outermost = links[0]
        collectives = tuple(engine.records.log[: outermost.first_mark])
        trees = begin_set_up(commit.state, self.trees_of_heads)
        self.trees_of_heads = ()
        passed = engine.phases.between(None, outermost)
        self._young_at = commit.boundary if passed else -1
        self._set_up = payload.SetUpJournal(
            outermost.site,
            outermost.entry,
            collectives,
            trees,
            passed,
            young=bool(passed),
            outside=engine.set_up.snapshot() if engine.set_up is not None else b"",
            texts=dict(sites.TEXTS),
        )
        self._put_set_up(self._set_up)

    def _put_set_up(self, record: payload.SetUpJournal) -> None:
        data = pickled(record)
        self.latest = [], data
        self._engine.journal.write_set_up(data)

    def begins_anew(self) -> bool:
        """Return whether set-up may have put other tensors into the models: this is the first boundary in an outermost loop."""
        return not self._is_set_up_of(self._engine.tracker.stack[0])

    def boundary(self, commit: BoundarySnapshot) -> None:
        links = self._around(commit.activation)
        if not self._is_set_up_of(links[0]):
            self._write_set_up(commit, links)
        elif 0 <= self._young_at < commit.boundary:  # all have passed a gate in this loop
            assert self._set_up is not None
            self._set_up = replace(self._set_up, young=False)
            self._young_at = -1
            self._put_set_up(self._set_up)
        records = [self._link(depth, links) for depth in range(len(links))]
        written = self._last_draw(commit)
        commit.activation.entered = written is not None
        if written is not None:
            records[-1] = records[-1]._replace(draw=written.plain(), loaders=())
        else:
            records[-1] = records[-1]._replace(mark=item_mark.mark_of(commit.item.item, commit.state.index))
        loaders = self.records_below(commit.state, links)
        self._note_shape(commit.state)
        nodes = encode(commit.state)
        settled = bool(self._engine.tracker.boundary_sites)
        if not settled:
            commit.activation.head = self._head_state([*nodes], commit.rng, commit.saves, loaders)
        commit.head = commit.activation.head
        self.no_way_in = self._iterators(commit)
        record = payload.BoundaryJournal(
            commit.boundary,
            settled,
            records,
            in_blocks(commit.state),
            commit.rng,
            tuple(commit.state.large),
            loaders,
            self.no_way_in,
            tuple(sorted(self._engine.tracker.boundary_sites)),
            tuple(sorted(self._engine.training.around)),
            dict(self._engine.updates.early.turns),
            tuple(sorted(self._engine.updates.whole.communicating)),
            self._engine.saves.journal(),
            self._gradients(),
            self._engine.updates.writes.paths,
            process_group.described(),
            self._engine.scripted.written(),
            self._engine.updates.effects.known(),
            self._engine.replicas.first_writes.unproven(),
            self._engine.replicas.first_writes.quiet(),
            self._engine.replicas.since,
            self._engine.fetching.record(),
        )
        parts = record.in_parts()
        if settled:
            assert self._set_up is not None
            self._engine.phases.boundary(links, parts, self._set_up.trees)
        self._engine.journal.write_boundary(commit.boundary, parts[0], parts[1:])
        self.last_bytes = sum(map(len, parts))
        self.latest = (parts, self.latest[1])

    def _gradients(self) -> bytes:
        """Return the gradients' record, pickled again only when it is another one than in the journal before."""
        record = self._engine.gradients.record
        if record is not self._gradients_written[0]:
            self._gradients_written = record, pickled(record)
        return self._gradients_written[1]

    def loader_created(self, iterator: Any) -> None:
        """Note that a data loader's iterator is made, or begins again."""
        commit = self._engine.commit
        loader = loader_of(iterator)
        number = None if commit is None else commit.state.index.get(id(loader))
        is_there = commit is not None and number is not None and commit.state.nodes[number].obj is loader
        self._dropped_loaders.created(iterator, is_there)

    def records_below(self, state: HostState, links: Sequence[Activation]) -> dict[int, payload.LoaderRecord]:
        """Return where the iterators stand that `state` leads to, by node; not those of the running loops, `links`."""
        below = sorted(state.drawn_from)
        led = (link.loaders for link in links if not link.entered) if below else ()
        in_loops = {id(iterator) for iterators in led for iterator in iterators}
        loaders = {}
        for number in below:
            node = state.nodes[number]
            track = self._engine.draws.track_of(node.obj) if id(node.obj) not in in_loops else None
            if track is not None:
                loaders[number] = track.record()._replace(loader=state.index.get(id(track.loader), -1))
        return loaders

    @property
    def shape(self) -> int:
        """Return how many kinds of objects the state has had so far: it grows when the state gets another shape."""
        return len(self._shapes)

    def _note_shape(self, state: HostState) -> None:
        """Note kinds of objects. Only what is new since the boundary before is looked at."""
        nodes = state.nodes
        numbers = state.renewed if state.takes_over else range(len(nodes))
        self._shapes.update([(nodes[number].kind, type(nodes[number].obj)) for number in numbers])

    def _iterators(self, commit: BoundarySnapshot) -> tuple[str, ...]:
        """Return the iterators that a joiner cannot lead to their place. A running loop's own is led there by the loop."""
        stack = self._engine.tracker.stack
        of_loops = self._engine.trees.of_loops
        draws = self._engine.draws
        state = commit.state
        in_loops = [cycle for activation in stack for cycle in stands.cycles_below(activation.iterator)]
        found: tuple[str, ...] = ()
        if state.iterators:
            found = tuple(
                name
                for name, iterator in state.iterators
                if id(iterator) not in of_loops and not self._can_be_led(iterator)
            )
        found = (*found, *self._made_and_lost(state))
        if draws.remembers_any():
            draws.forget_cycles({id(c) for c in in_loops} | {id(iterator) for _, iterator in state.iterators})
        for activation in stack:
            is_entered = (
                activation is commit.activation and activation.entered
            )  # drawn from once, with what was used then
            if not is_entered and draws.is_random(activation.iterator):
                found = (*found, self._not_led(activation))
        for activation in stack[: stack.index(commit.activation)]:
            if not activation.head and activation.heads > 1:
                found = (*found, self._unknown_head(activation))
        if draws.cannot_lead():
            found = (*found, SHARED_RANDOM)
        if not draws.some_keep_workers:
            return found
        known = {id(iterator) for activation in stack for iterator in activation.loaders}
        known |= {id(state.nodes[n].obj) for n in state.drawn_from if self._is_told_of(state, state.nodes[n].obj)}
        known |= self._dropped_loaders.dropped(draws.tracks, state.index)
        return (*found, KEPT_WORKERS) if draws.kept_workers(known) else found

    def _is_told_of(self, state: HostState, iterator: Any) -> bool:
        """Return whether a joiner is given this iterator, and the loader that it has to be made by."""
        tracks = self._engine.draws.tracks
        return isinstance(iterator, LoaderIter) and iterator in tracks and id(tracks[iterator].loader) in state.index

    def _made_and_lost(self, state: HostState) -> Iterator[str]:
        """Yield the loaders that a step has made, training goes on drawing from, and no other process could make."""
        made = self._engine.trees.data_origins
        for number in sorted(state.drawn_from):
            iterator = state.nodes[number].obj
            loader = loader_of(iterator) if isinstance(iterator, LoaderIter) else None
            if loader is None or id(iterator) in made.of_loops or made.maker(loader) is not Maker.STEP:
                continue
            if not self._made_loaders.can_be_made(state, loader):
                yield f"{state.path(number)}, the iterator of a data loader that training has made over what cannot be captured"

    @staticmethod
    def _not_led(activation: Activation) -> str:
        site = sites.SITES[activation.site]
        kind = type(activation.iterator).__name__
        return f"the {kind} of the loop at {site.file}:{site.line}, which draws from the process's random generators itself"

    @staticmethod
    def _unknown_head(activation: Activation) -> str:
        site = sites.SITES[activation.site]
        return f"the loop at {site.file}:{site.line}, which had gone round before it was seen to train"

    def _can_be_led(self, iterator: Any) -> bool:
        return isinstance(iterator, itertools.cycle) and self._engine.draws.of_cycle(iterator) is not None

    def _last_draw(self, commit: BoundarySnapshot) -> last_draw.WrittenDraw | None:
        """Return the training loop's latest draw, if its iterator is put to where it stood."""
        before = commit.activation.before
        iterator = commit.activation.iterator
        if before is None or id(iterator) not in commit.state.index:
            return None
        is_over = self._engine.draws.is_over
        return last_draw.write(
            before, commit.item.item, commit.state, is_over, commit.activation.drawn, commit.activation.began
        )

    def _link(self, depth: int, links: list[Activation]) -> payload.LinkRecord:
        link = links[depth]
        start = links[depth - 1].head_mark if depth else link.first_mark
        position = plain_range(link.iterator)
        records = [None if made is None else self._engine.draws.record(made) for made in link.loaders]
        return payload.LinkRecord(
            site=link.site,
            entry=link.entry,
            heads=link.heads,
            entry_rng=link.rng,
            item=link.item if position is not None else None,
            iterator=position,
            loaders=tuple(records),
            head=link.head if depth < len(links) - 1 else b"",
            prologue=tuple(self._engine.records.log[start : link.first_mark]),
            passed=self._engine.phases.between(links[depth - 1], link) if depth else (),
            first_draw=max(0, link.first_mark - link.made_mark),
        )

    def gate(self, commit: BoundarySnapshot, frame: FrameType) -> None:
        """Write what only this rank knows of the step."""
        engine = self._engine
        body = tuple(engine.records.log[engine.records.body_mark :])
        state = self.walk(script_frames(frame), commit.state, at_gate=True)
        engine.updates.effects.at_gate(state)
        known = commit.state.index
        large = state.large
        made = {path: tensor for path, tensor in sorted(large.items()) if id(tensor) not in known} if large else {}
        unread = engine.updates.reads.results.at_gate(made)
        fresh = {path: small.why_not_taken(tensor) for path, tensor in made.items() if path not in unread}
        written = encode(state)
        others = state.renewed | state.fleeting if state.takes_over else range(len(written))
        changed = {}
        for number in others:
            changed[number] = written[number]
        lost = tuple(f"{path} ({why})" for path, why in fresh.items())
        record = payload.GateJournal(
            commit.boundary,
            len(written),
            changed,
            rng.capture(),
            body,
            lost,
            engine.heads_at_gate(),
            engine.replicas.unproven_at_gate(commit),
            tuple((path, state.index[id(made[path])]) for path in sorted(unread)),
        )
        data = record.written()
        engine.journal.write_gate(commit.boundary, data)
        engine.phases.gate(data)
        engine.reporter.at_gate(commit, fresh)
