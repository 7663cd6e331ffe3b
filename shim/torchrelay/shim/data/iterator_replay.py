"""What the iterators of this process have yielded since the latest boundary, and what they have to yield again."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import sys
import weakref
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from types import FrameType, GeneratorType
from typing import Any

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.cpython import cycles
from torchrelay.shim.adapters.cpython.csv_readers import lines_of
from torchrelay.shim.adapters.cpython.generator_code import only_passes_on
from torchrelay.shim.capture import rng
from torchrelay.shim.capture.iteration import shared_memory
from torchrelay.shim.capture.iteration.data_changes import DataChanges
from torchrelay.shim.capture.iteration.generator_position import cycles_below
from torchrelay.shim.capture.iteration.loader_order import LoaderIter, made_by, order_of
from torchrelay.shim.capture.state.led_iterators import LedIterators
from torchrelay.shim.capture.state.parts import attributes
from torchrelay.shim.capture.values.by_identity import ByIdentity
from torchrelay.shim.capture.values.kinds import Kind, kind_of
from torchrelay.shim.capture.values.replay_point import ReplayPoint
from torchrelay.shim.data.batch_originals import BatchOriginals
from torchrelay.shim.data.data_state import ChangedByDraws, DataState
from torchrelay.shim.data.loader_cursor import LoaderCursor, is_stream
from torchrelay.shim.data.replayed_item import Over, ReplayedItem
from torchrelay.shim.data.sampler_rng_log import SamplerRngLog
from torchrelay.shim.journal.payload import LoaderRecord

_RUN_NO_CODE = frozenset(map(type, (iter([]), iter(()), iter({}), iter(set()), iter(""), iter(range(0)), reversed([]))))
"""Iterators of these change nothing but themselves."""
_STANDS = (Kind.GENERATOR, Kind.ITERATOR, Kind.CYCLE, Kind.FILE)
_OF_READERS = (*_STANDS, Kind.THROUGH)


class IteratorReplay:
    def __init__(self) -> None:
        self.live = False
        self.recording = False
        """Off until the first boundary: before it there is nothing to go back to."""
        self.tracks: weakref.WeakKeyDictionary[Any, LoaderCursor] = weakref.WeakKeyDictionary()
        self.consumed: dict[int, tuple[Any, list[ReplayedItem]]] = {}
        self.replay: dict[int, tuple[Any, deque[ReplayedItem]]] = {}
        self.expected: deque[tuple[LoaderRecord, bool] | None] = deque()
        """A joiner's: records for the iterators that are made next, and whether they may skip; None for one that is over soon."""
        self.in_loop: Callable[[], bool] = lambda: False
        """Whether the draw in progress is that of a loop, and not its first."""
        self._random: dict[int, Any] = {}
        """Iterators of loops that used the process's generators themselves, by id: led forward without the steps in between, they
        would yield something else."""
        self._generators_at: rng.RngState | None = None
        self._used_between = False
        self.on_create: Callable[[Any], None] | None = None
        self.on_draw: Callable[[], None] | None = None
        self.leaves_changed: Callable[[], Callable[[], None]] = lambda: lambda: None
        """Returns a function that puts all that has changed since the boundary to what it is at the call.

        The code of an iterator that is led may change any of it.
        """
        self.touched: list[Callable[[], Callable[[], None]]] = []
        """Makers of effects: what was below the draw in progress and has changed with it."""
        self.in_body: Callable[[], bool] = lambda: False
        """Whether a rewind could ask again for the draw in progress."""
        self.leaves_behind: Callable[[list[Any]], Callable[[], None]] = lambda loaders: lambda: None
        """What drawing from these loaders may have changed is put to what it is at the call."""
        self.about_to_draw: Callable[[Any, Any], Callable[[], Callable[[], None]]] | None = None
        """Of a loader and its iterator, which draws in this process: makes the maker of an effect, as `touched` has them."""
        self.other_generators: Callable[[], Mapping[int, Any]] = dict
        """State of those among the script's objects, by id."""
        self._drawn_below: list[Any] = []
        """Loaders that the draw in progress has drawn from."""
        self.is_state: Callable[[Any], bool] = lambda _: False
        """Whether a rewind has put the content of this container back in its place."""
        self.led = LedIterators()
        self.counted: Any = None
        """The outermost iterator that is being asked, of those that a new process can ask as often."""
        self.state_ids: Callable[[], Container[int]] = tuple
        """Ids of the objects that training has and changes."""
        self.at_once = False
        """Of `expected`, as in LoaderCursor."""
        self._cycles: dict[int, tuple[Any, LoaderCursor]] = {}
        self.batches = BatchOriginals()
        self.rewinds = 0
        self.boundary = 0
        """How many there have been."""
        self._nested = False
        self._asks_led = False
        """Whether the draw in progress has asked an iterator that may be led: itself, or one that it draws from."""
        self._within = 0
        """The iterator that draws from others now, by id; none if the script does itself, or what goes back as it does."""
        self._repeated: set[int] = set()
        """Iterators that have yielded again since the rank went back, by id."""
        self._ahead = 0
        self.some_keep_workers = False
        """Whether any loader was ever seen that does: most scripts have none, and their steps need not look."""
        self._latest: tuple[Any, ReplayedItem] | None = None
        self.starting: GeneratorType[Any, Any, Any] | None = None
        """A joiner's generator that is started for what it makes at its start: its first item is nobody's."""
        self.made_generators: weakref.WeakSet[Any] = weakref.WeakSet()
        """A joiner's, that it has made in place of others: they have no arguments, so they must not run from their beginning."""
        self.data_changes = DataChanges()
        self._changed_by_draws: ByIdentity[ChangedByDraws] = ByIdentity()
        self.began: list[LoaderRecord | None] = []
        """How data loaders' iterators, and further epochs of theirs, have begun since the boundary, in that order; None for what
        begins alike in another process that has the same generators."""

    def start(self, generator: GeneratorType[Any, Any, Any]) -> None:
        """Let it come to its first item. Raises StateMismatchError where what it draws from would be one item ahead."""
        self.starting = generator
        try:
            next(generator, None)
        finally:
            self.starting = None

    def needs_no_item(self) -> bool:
        """Return whether the generator that is started, and all between it and the present draw, pass on what they are given."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_flags & inspect.CO_GENERATOR and not only_passes_on(frame.f_code):
                return False
            if self.starting is not None and frame is self.starting.gi_frame:
                return True
            frame = frame.f_back
        return False

    def at_boundary(self, before: ReplayedItem | None = None) -> None:
        """Begin a record at a boundary. `before`: what the step that is over was given."""
        self._look_for_writes(before)
        self.recording = True
        self._nested = False  # a draw in progress is one that trains
        self._within = 0
        self.boundary += 1
        self._repeated.clear()
        self._forget()

    def _look_for_writes(self, before: ReplayedItem | None = None) -> None:
        """Look whether the step has written into what it was given."""
        if self.batches.written:
            return
        items = [drawn for _, items in self.consumed.values() for drawn in items]
        for drawn in (*items, *((before,) if before is not None else ())):
            self.batches.look(drawn.tensors, self.is_state)

    def let_go(self) -> None:
        """Let go of what was drawn since the boundary: nobody goes back to that."""
        self._look_for_writes()
        self.consumed.clear()

    def stop(self) -> None:
        self.recording = False
        self._latest = None
        self._forget()

    def _forget(self) -> None:
        self.consumed.clear()
        self.replay.clear()
        self.began.clear()

    def rewind(self) -> None:
        """Let what was consumed come again, before anything new. Entries hold their iterators: an address could be reused.

        Raises StateMismatchError where that cannot be.
        """
        for _, items in self.consumed.values():
            for drawn in items:
                drawn.check(self.is_state)
        for key, (iterator, items) in self.consumed.items():
            if isinstance(iterator, ReplayPoint) and iterator.begin_again(self.boundary):
                self.replay.pop(key, None)
                continue
            rest = self.replay.get(key, (iterator, deque()))[1]
            self.replay[key] = (iterator, deque([*items, *rest]))
        self.consumed = {}
        self._repeated.clear()
        self.rewinds += 1

    def next(self, plain: Callable[..., Any], iterator: Any, *default: Any) -> Any:
        """Return the next item of a loop's iterator, or of one that the script asks. `plain`: the builtin."""
        by_itself = isinstance(iterator, (LoaderIter, ReplayPoint))
        return plain(iterator, *default) if by_itself else self.draw(iterator, plain, default)

    def _goes_back(self, iterator: Any) -> bool:
        """Return whether a rewind puts the iterator to where it stood: what it yields must not come from a record then."""
        kind = kind_of(type(iterator))
        if kind in _STANDS:
            return self.is_state(iterator) and not self.led.has(iterator)
        if kind is Kind.THROUGH:
            return self._goes_back(lines_of(iterator))
        if kind not in (Kind.ATTRS, Kind.LOADER):
            return False
        below = [(kind_of(type(v)), v) for v in attributes(iterator).values() if hasattr(type(v), "__next__")]
        return all(k is not Kind.UNKNOWN and (k not in _OF_READERS or self._goes_back(v)) for k, v in below)

    def draw(self, iterator: Any, original: Callable[..., Any], default: tuple[Any, ...] = ()) -> Any:
        if not self.recording or self._nested or self._goes_back(iterator):
            item = self._ask(original, iterator, default)
            if not self.recording:
                self.touched.clear()
                self._drawn_below.clear()
            return item
        queue = self.replay.get(id(iterator))
        if queue is not None and queue[1]:
            drawn = queue[1].popleft()
            rng.restore(drawn.after)
            for again in drawn.effects:
                again()
            self._repeated.add(id(iterator))
            if isinstance(drawn.item, Over):
                self._consume(iterator, drawn)
                raise StopIteration(*drawn.item)
            drawn.put_back(self.is_state)
            item = drawn.again(self.is_state)
        else:
            of_script = not isinstance(iterator, LoaderIter)
            self._asks_led = False
            self._nested = True  # what it draws from comes again with its item, not by itself
            self._within = id(iterator) if of_script and not isinstance(iterator, ReplayPoint) else 0
            self.touched.clear()
            self._drawn_below.clear()
            watched = of_script and self.in_loop()
            if watched:
                self._generators_at = rng.capture()
                self._used_between = False
            try:
                item = self._ask(original, iterator, default)
            except StopIteration as over:
                # Asked again, it would not change again what its end has, or draw from an epoch that has begun since.
                if self.some_keep_workers or self.in_body():
                    end = Over(*over.args)
                    self._consume(iterator, ReplayedItem(end, rng.capture(), effects=self._left_behind(iterator)))
                raise
            finally:
                self._nested = False
                self._within = 0
                self.look_at_generators()
                if watched and self._used_between:
                    self._random[id(iterator)] = iterator
                self._generators_at = None
            drawn = ReplayedItem.note(item, copy=self.batches.copies(self.boundary))
            drawn.effects = self._left_behind(iterator)
            self._latest = item, drawn
        self._consume(iterator, drawn)
        return item

    def _ask(self, ask: Callable[..., Any], iterator: Any, default: tuple[Any, ...]) -> Any:
        """Ask an iterator, and count that if it may be led."""
        known = self.led.known(iterator)
        if known is None:
            return ask(iterator, *default)
        self._asks_led = True
        before = rng.capture()
        outer = self.counted
        known.is_asked_itself = known.is_asked_itself or outer is None
        self.counted = iterator if outer is None else outer
        try:
            item = ask(iterator, *default)
        finally:
            self.counted = outer
        known.uses_chance = known.uses_chance or rng.capture() != before
        known.was_asked(iterator)
        self.touched.append(self.led.taken(known, item))
        return item

    def _left_behind(self, iterator: Any) -> tuple[Callable[[], None], ...]:
        """Return what does again what the present draw has left behind."""
        effects = tuple(effects() for effects in self.touched)
        if type(iterator) not in _RUN_NO_CODE and self.in_body():
            effects += (self.leaves_behind([*self._drawn_below]),)
            if self._asks_led and not self._goes_back(iterator):
                effects += (self.leaves_changed(),)
        return effects

    def _consume(self, iterator: Any, drawn: ReplayedItem) -> None:
        self.consumed.setdefault(id(iterator), (iterator, []))[1].append(drawn)

    def draws_from(self, loader: Any, iterator: Any) -> None:
        """Note that the loader's iterator is at work in the draw in progress."""
        self._drawn_below.append(loader)
        if self.about_to_draw is not None and self.recording and loader.num_workers == 0 and self.in_body():
            self.touched.append(self.about_to_draw(loader, iterator))

    def begins(self, track: LoaderCursor) -> bool:
        """Note that another epoch begins of a loader that keeps its workers.

        Return whether it is the first one since the boundary.
        """
        return track.begins((self.boundary, self.rewinds), self._within)

    def is_beginning(self, track: LoaderCursor) -> None:
        """Note that an iterator is being made, or that another epoch of it begins."""
        if self.recording:
            track.began_as = len(self.began)
            self.began.append(None)

    def has_begun(self, track: LoaderCursor) -> None:
        """Record an epoch that has begun, with workers that are kept, and of which it is known how they were."""
        if self.recording and track.epoch is not None:
            self.began[track.began_as] = track.record()

    def begun_already(self, track: LoaderCursor) -> LoaderRecord | None:
        """Return how the epoch that is to begin has begun before the rank went back: its workers are ahead of that.

        Raises StateMismatchError where it cannot be told.
        """
        if track.began[0] != self.boundary or track.began[1] == self.rewinds:
            return None
        if track.again is None or not self._is_done_again(track.by):
            raise StateMismatchError("an epoch of a data loader with persistent_workers cannot be begun again")
        return track.again

    def _is_done_again(self, by: int) -> bool:
        """Return whether what begins an epoch now does again what `by` did.

        Of two iterators, only if the first one is not asked any more: one that was there at the boundary is not done again, but
        yields again what it has.
        """
        if not by or not self._within:
            return by == self._within
        return by != self._within and by in self.replay and by not in self._repeated

    def noted(self, item: Any, now: rng.RngState) -> ReplayedItem:
        """Return the record of what a loop has just drawn. `now`: the generators."""
        latest = self._latest
        self._latest = None
        if latest is not None and latest[0] is item and latest[1].after == now:
            return latest[1]
        return ReplayedItem.note(item, now, copy=self.batches.copies(self.boundary))

    def look_at_generators(self) -> None:
        """Note a use of the generators between two places in a watched draw at which a loader's iterator is at work.

        The iterator's own use of them is in its record.
        """
        if self._generators_at is not None and rng.capture() != self._generators_at:
            self._used_between = True

    def leave_generators(self) -> None:
        if self._generators_at is not None:
            self._generators_at = rng.capture()

    def is_over(self, iterator: Any) -> bool:
        track = self.tracks.get(iterator)
        return track is not None and track.over

    def is_random(self, iterator: Any) -> bool:
        """Return whether a running loop's iterator, led forward, would yield something else than it did."""
        return id(iterator) in self._random or any(map(self._is_random_cycle, cycles_below(iterator)))

    def _is_random_cycle(self, cycle: Any) -> bool:
        is_over_a_loader = id(cycle) in self._cycles or isinstance(cycles.iterator_of(cycle), LoaderIter)
        return is_over_a_loader and self.of_cycle(cycle) is None

    def track_of(self, iterator: Any) -> LoaderCursor | None:
        """Return the track of a data loader's iterator, or of the one that a cycle draws from."""
        return self.of_cycle(iterator) if isinstance(iterator, itertools.cycle) else self.tracks.get(iterator)

    def record(self, iterator: Any) -> LoaderRecord | None:
        track = self.track_of(iterator)
        return None if track is None else track.record()

    @contextlib.contextmanager
    def ahead(self) -> Iterator[None]:
        """Let iterators that are made within be drawn from one item ahead of what is in use."""
        self._ahead += 1
        try:
            yield
        finally:
            self._ahead -= 1

    def track(self, iterator: Any, loader: Any) -> LoaderCursor:
        at = self.boundary, self.rewinds
        turns = SamplerRngLog(self.other_generators, is_stream=is_stream(loader))
        before: deque[rng.RngState] = deque(maxlen=1 + self._ahead)
        held = made_by(iterator, loader)
        made = LoaderCursor(held, rng.capture(), order_of(loader), turns, at, self._within, before=before)
        made.data = DataState(loader, self._changed_by_draws)
        made.data_before = deque(maxlen=1 + self._ahead)
        made.shared = shared_memory.content(made.data.shared)
        shared_memory.begins(iterator, made.data.shared.values())
        made.again = made.record()
        self.tracks[iterator] = made
        self.some_keep_workers |= made.keeps_workers()
        return made

    def of_cycle(self, cycle: Any) -> LoaderCursor | None:
        """Return the track of what the cycle draws from, or did in its first pass.

        None if a new process could not draw the same.
        """
        known = self._cycles.get(id(cycle))
        if known is None:
            source = cycles.iterator_of(cycle)
            track = self.tracks.get(source) if isinstance(source, LoaderIter) else None
            if track is None or track.drawn > 1:
                return None  # what it has drawn after its first item, nobody has watched
            self.watch_cycle(cycle, track)
            known = cycle, track
        return None if known[1].own_random else known[1]

    def watch_cycles(self, iterator: Any) -> None:
        """Look from here on at what cycles over data loaders draw, those that a loop's iterator draws from."""
        for cycle in cycles_below(iterator):
            self.of_cycle(cycle)

    def watch_cycle(self, cycle: Any, track: LoaderCursor) -> None:
        """Watch a cycle. `track`: of what it draws from."""
        track.in_cycle = True
        self._cycles[id(cycle)] = cycle, track

    def led_cycles(self) -> set[int]:
        """Return the ids of the cycles that have their items from a data loader."""
        return {*self._cycles}

    def cannot_lead(self) -> bool:
        """Return whether the order of some loader depends on what a new process could not draw again."""
        return any(track.turns.cannot_be_led and not track.over for track in self.tracks.values())

    def remembers_any(self) -> bool:
        """Return whether there is anything to forget."""
        return bool(self._cycles or self._random)

    def forget_cycles(self, known: set[int]) -> None:
        """Forget cycles, and iterators that draw at random, which are not used any more. `known`: ids of those that are."""
        for address in self._cycles.keys() - known:
            del self._cycles[address]
        for address in self._random.keys() - known:
            del self._random[address]

    def kept_workers(self, known: set[int]) -> bool:
        """Return whether some loader's workers are of an earlier epoch, with state that is not seen, or could not be told of.

        `known`: ids of iterators that a joiner can be led to.
        """
        kept = [(iterator, track) for iterator, track in self.tracks.items() if track.keeps_workers()]
        return any((track.restarted and track.epoch is None) or id(iterator) not in known for iterator, track in kept)

    def keeps_workers(self) -> bool:
        """Return whether some loader keeps its worker processes from one epoch to the next."""
        return any(track.keeps_workers() for track in self.tracks.values())
