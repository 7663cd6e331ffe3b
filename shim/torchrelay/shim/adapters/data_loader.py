"""Iterators of torch's DataLoader: what was drawn since the boundary can be drawn again, and a joiner's can be led forward.

Leans on `_BaseDataLoaderIter`: `__init__(loader)`, `__next__`, `_next_index`, `_sampler_iter`, `_num_workers`,
`_dataset_kind`, `_reset`. Seen on torch 2.13.0.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import dataloader

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters import cycles
from torchrelay.shim.capture import rng, small
from torchrelay.shim.capture.kinds import PLAIN, Kind, kind_of
from torchrelay.shim.capture.parts import attributes
from torchrelay.shim.capture.replay_point import ReplayPoint
from torchrelay.shim.payload import LoaderRecord

LoaderIter = dataloader._BaseDataLoaderIter
Order = tuple[tuple[Any, dict[str, Any]], ...]
"""Of a loader, its sampler and its batch sampler: the generator's state and plain attributes."""


@dataclass
class Track:
    """One live iterator. `skip`: draws that only move the sampler; they return None."""

    loader: Any
    created: rng.RngState
    order: Order
    drawn: int = 0
    first: tuple[rng.RngState, Order] | None = None
    before: deque[rng.RngState] = field(default_factory=lambda: deque(maxlen=1))
    """Generators before the latest draws: as many as are still in use somewhere."""
    skip: int = 0
    restarted: bool = False
    """An epoch later, with the same worker processes."""
    target: LoaderRecord | None = None
    """A joiner's: where the recorded iterator stood."""
    at_once: bool = False
    """Whether its first draw goes to the recorded item: a generator in between looks at what it gets."""
    over: bool = False
    in_cycle: bool = False
    own_random: bool = False
    """Whether a draw after the first one has used the process's generators: drawn again, it would be another item."""

    def record(self) -> LoaderRecord:
        return LoaderRecord(self.created, self.order, self.drawn, self.first, tuple(self.before))


def owners(loader: Any) -> list[Any]:
    """The loader, its samplers, and theirs: accelerate and lightning put samplers around samplers."""
    found = [loader]
    for owner in found:
        below = (getattr(owner, name, None) for name in ("sampler", "batch_sampler"))
        found += [s for s in below if s is not None and not any(s is known for known in found)]
    return found


def plain_fields(obj: Any) -> dict[str, Any]:
    return {name: value for name, value in getattr(obj, "__dict__", {}).items() if type(value) in PLAIN}


def _order(loader: Any) -> Order:
    """What decides the order of the data: generators, and the samplers' own numbers, such as the epoch."""
    found = []
    for owner in owners(loader):
        generator = getattr(owner, "generator", None)
        state = small.take(generator.get_state()) if isinstance(generator, torch.Generator) else None
        found.append((state, plain_fields(owner) if owner is not loader else {}))
    return tuple(found)


def _order_again(loader: Any) -> Callable[[], None]:
    return functools.partial(_set_order, loader, _order(loader))


def _set_order(loader: Any, order: Order) -> None:
    for owner, (state, fields) in zip(owners(loader), order):
        if state is not None:
            owner.generator.set_state(small.build(state))
        if fields:
            vars(owner).update(fields)


def copy_structure(item: Any, originals: dict[int, Any] | None = None) -> Any:
    """The item with containers of its own: a step may put moved tensors into the dict that it was given.

    `originals`: gets the container that each copy was made of, by the copy's id.
    """
    made = item
    if type(item) is dict:
        made = {k: copy_structure(v, originals) for k, v in item.items()}
    elif type(item) in (list, tuple):
        made = type(item)(copy_structure(v, originals) for v in item)
    if originals is not None and type(item) in (dict, list):
        originals[id(made)] = item
    return made


def tensors_in(item: Any) -> list[torch.Tensor]:
    if isinstance(item, torch.Tensor):
        return [item]
    if isinstance(item, dict):
        item = list(item.values())
    return [t for v in item for t in tensors_in(v)] if isinstance(item, (list, tuple)) else []


def _is_rewound_by_itself(iterator: Any) -> bool:
    """An object whose attributes say what comes next goes back with them: what it yielded must not come from a record."""
    if kind_of(type(iterator)) is not Kind.ATTRS:
        return False
    below = attributes(iterator).values()
    return not any(
        kind_of(type(v)) in (Kind.UNKNOWN, Kind.CYCLE, Kind.GENERATOR) and hasattr(type(v), "__next__") for v in below
    )


@dataclass
class Drawn:
    """One item of an iterator, the generators after it was drawn, and what else drawing it has changed."""

    item: Any
    after: rng.RngState
    versions: list[tuple[torch.Tensor, int]] = field(default_factory=list)
    effects: tuple[Callable[[], None], ...] = ()
    originals: dict[int, Any] = field(default_factory=dict)

    @classmethod
    def note(cls, item: Any, after: rng.RngState | None = None) -> Drawn:
        originals: dict[int, Any] = {}
        kept = copy_structure(item, originals)
        return cls(kept, after or rng.capture(), [(t, t._version) for t in tensors_in(kept)], (), originals)

    def again(self, is_state: Callable[[Any], bool]) -> Any:
        """The item as it was. `is_state`: of a container that was put back in its place, such as an optimizer's group, which a
        step has to be given itself."""
        return self._again(self.item, is_state)

    def _again(self, kept: Any, is_state: Callable[[Any], bool]) -> Any:
        original = self.originals.get(id(kept))
        if original is not None and is_state(original):
            return original
        if type(kept) is dict:
            return {k: self._again(v, is_state) for k, v in kept.items()}
        if type(kept) in (list, tuple):
            return type(kept)(self._again(v, is_state) for v in kept)
        return kept

    def untouched(self) -> bool:
        return all(t._version == version for t, version in self.versions)


class Draws:
    """What the iterators of this process yielded since the latest boundary, and what they have to yield again."""

    def __init__(self) -> None:
        self.live = False
        self.recording = False
        """Off until the first boundary: before it there is nothing to go back to."""
        self.tracks: weakref.WeakKeyDictionary[Any, Track] = weakref.WeakKeyDictionary()
        self.consumed: dict[int, tuple[Any, list[Drawn]]] = {}
        self.replay: dict[int, tuple[Any, deque[Drawn]]] = {}
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
        self.touched: list[Callable[[], Callable[[], None]]] = []
        """Makers of effects: what was below the draw in progress and has changed with it."""
        self.is_state: Callable[[Any], bool] = lambda _: False
        """Whether a rewind has put the content of this container back in its place."""
        self.at_once = False
        """Of `expected`, as in Track."""
        self.held: set[int] = set()
        """Iterators that generators in variables draw from, by id."""
        self.past_us = False
        """Whether such a generator was drawn from otherwise than by `next`, in a loop of the step for example: what it has yielded
        cannot come again then."""
        self._cycles: dict[int, tuple[Any, Track]] = {}
        self.rewinds = 0
        self.boundary = 0
        """How many there have been."""
        self._nested = False
        self._ahead = 0

    def at_boundary(self) -> None:
        self.recording = True
        self.boundary += 1
        self.consumed.clear()
        self.replay.clear()

    def stop(self) -> None:
        self.recording = False
        self.consumed.clear()
        self.replay.clear()

    def rewind(self) -> None:
        """What was consumed comes again, before anything new. Entries hold their iterators: an address could be reused.

        Raises StateMismatchError where it cannot.
        """
        if self.past_us:
            raise StateMismatchError("a generator that is kept in a variable was drawn from by other means than next()")
        for key, (iterator, items) in self.consumed.items():
            if isinstance(iterator, ReplayPoint) and iterator.begin_again(self.boundary):
                self.replay.pop(key, None)
                continue
            rest = self.replay.get(key, (iterator, deque()))[1]
            self.replay[key] = (iterator, deque([*items, *rest]))
        self.consumed = {}
        self.rewinds += 1

    def draw(self, iterator: Any, original: Callable[..., Any], default: tuple[Any, ...] = ()) -> Any:
        if not self.recording or self._nested or _is_rewound_by_itself(iterator):
            item = original(iterator, *default)
            if not self.recording:
                self.touched.clear()
            return item
        if self.held and id(iterator) in self.held:
            self.past_us = True
        queue = self.replay.get(id(iterator))
        if queue is not None and queue[1]:
            drawn = queue[1].popleft()
            rng.restore(drawn.after)
            for again in drawn.effects:
                again()
            item = drawn.again(self.is_state)
        else:
            self._nested = not isinstance(iterator, LoaderIter)
            self.touched.clear()
            watched = self._nested and self.in_loop()
            if watched:
                self._generators_at, self._used_between = rng.capture(), False
            try:
                item = original(iterator, *default)
            finally:
                self._nested = False
                self.look_at_generators()
                if watched and self._used_between:
                    self._random[id(iterator)] = iterator
                self._generators_at = None
            drawn = Drawn.note(item)
            drawn.effects = tuple(effects() for effects in self.touched)
        self.consumed.setdefault(id(iterator), (iterator, []))[1].append(drawn)
        return item

    def look_at_generators(self) -> None:
        """Between two places in a watched draw at which a loader's iterator is at work: its own use of them is in its record."""
        if self._generators_at is not None and rng.capture() != self._generators_at:
            self._used_between = True

    def leave_generators(self) -> None:
        if self._generators_at is not None:
            self._generators_at = rng.capture()

    def is_over(self, iterator: Any) -> bool:
        track = self.tracks.get(iterator)
        return track is not None and track.over

    def is_random(self, iterator: Any) -> bool:
        """Whether a running loop's iterator, led forward, would yield something else than it did."""
        if id(iterator) in self._random:
            return True
        if not isinstance(iterator, itertools.cycle):
            return False
        return self.of_cycle(iterator) is None and (
            id(iterator) in self._cycles or isinstance(cycles.iterator_of(iterator), LoaderIter)
        )

    def record(self, iterator: Any) -> LoaderRecord | None:
        track = self.tracks.get(iterator)
        if track is None:
            return None
        return track.record()

    @contextlib.contextmanager
    def ahead(self) -> Iterator[None]:
        """Iterators that are made within are drawn from one item ahead of what is in use."""
        self._ahead += 1
        try:
            yield
        finally:
            self._ahead -= 1

    def track(self, iterator: Any, loader: Any) -> Track:
        made = Track(loader, rng.capture(), _order(loader), before=deque(maxlen=1 + self._ahead))
        self.tracks[iterator] = made
        return made

    def of_cycle(self, cycle: Any) -> Track | None:
        """The iterator that it draws from, or drew from in its first pass; None if a new process could not draw the same."""
        known = self._cycles.get(id(cycle))
        if known is None:
            source = cycles.iterator_of(cycle)
            track = self.tracks.get(source) if isinstance(source, LoaderIter) else None
            if track is None or track.drawn > 1:
                return None  # what it has drawn after its first item, nobody has watched
            track.in_cycle = True
            known = self._cycles[id(cycle)] = cycle, track
        return None if known[1].own_random else known[1]

    def forget_cycles(self, known: set[int]) -> None:
        """The same of iterators that draw at random. `known`: ids of those that are still in use."""
        for address in self._cycles.keys() - known:
            del self._cycles[address]
        for address in self._random.keys() - known:
            del self._random[address]

    def kept_workers(self, in_loops: set[int]) -> bool:
        """Whether some loader's workers are of an earlier epoch, with state that nobody sees. `in_loops`: ids of iterators."""
        return any(
            track.restarted or id(iterator) not in in_loops
            for iterator, track in self.tracks.items()
            if getattr(track.loader, "persistent_workers", False)
        )

    def keeps_workers(self) -> bool:
        """Whether some loader keeps its worker processes from one epoch to the next."""
        return any(getattr(track.loader, "persistent_workers", False) for track in self.tracks.values())


def install(draws: Draws, on_training_thread: Callable[[], bool]) -> None:
    """Hooks into the iterator class; does nothing until `draws.live` or `draws.expected`."""
    original_init, original_next, original_reset = LoaderIter.__init__, LoaderIter.__next__, LoaderIter._reset

    @functools.wraps(original_init)
    def __init__(self: Any, loader: Any) -> None:
        if not draws.live or not on_training_thread():
            original_init(self, loader)
            return
        draws.look_at_generators()
        expected = draws.expected.popleft() if draws.expected else None
        if expected is not None:
            rng.restore(expected[0].created)
            _set_order(loader, expected[0].order)
        track = draws.track(self, loader)
        may_skip = expected is not None and expected[1] and loader.num_workers == 0
        if expected is not None:
            track.target, track.at_once = expected[0], draws.at_once
            if may_skip and loader._dataset_kind == dataloader._DatasetKind.Map:
                track.skip = max(expected[0].drawn - len(expected[0].before), 0)
        original_init(self, loader)
        draws.leave_generators()
        if draws.on_create is not None:
            draws.on_create(self)

    @functools.wraps(original_reset)
    def _reset(self: Any, loader: Any, first_iter: bool = False) -> None:
        original_reset(self, loader, first_iter)
        if not first_iter and self in draws.tracks:
            draws.tracks[self].restarted, draws.tracks[self].over = True, False

    @functools.wraps(original_next)
    def __next__(self: Any) -> Any:
        if not draws.live or not on_training_thread():
            return original_next(self)
        if draws.on_draw is not None:
            draws.on_draw()
        draws.look_at_generators()
        try:
            return draws.draw(self, advance)
        finally:
            draws.leave_generators()

    def advance(iterator: Any) -> Any:
        track = draws.tracks.get(iterator)
        if track is None:
            return original_next(iterator)
        if track.drawn == 0:
            # A sampler chooses its order when it is first asked, which can be long after the iterator was made.
            if track.target is not None and track.target.first is not None:
                rng.restore(track.target.first[0])
                _set_order(track.loader, track.target.first[1])
            track.first = rng.capture(), _order(track.loader)
            draws.touched.append(functools.partial(_order_again, track.loader))
        while track.skip > 0:
            track.skip -= 1
            iterator._next_index()
            iterator._num_yielded += 1
            track.drawn += 1
            if not track.at_once:
                return None
        while track.at_once and track.target is not None and track.target.drawn - track.drawn > 1:
            original_next(iterator)
            track.drawn += 1
        if track.target is not None:
            left = track.target.drawn - track.drawn
            if 0 < left <= len(track.target.before):
                rng.restore(track.target.before[-left])
            if left <= 1:
                track.target = None
        track.before.append(rng.capture())
        try:
            item = original_next(iterator)
        except StopIteration:
            track.over = True
            raise
        if track.in_cycle and track.drawn > 0 and rng.capture() != track.before[-1]:
            track.own_random = True
        track.drawn += 1
        return item

    setattr(LoaderIter, "__init__", __init__)  # noqa: B010 - mypy forbids the assignment
    setattr(LoaderIter, "__next__", __next__)  # noqa: B010 - the same
    setattr(LoaderIter, "_reset", _reset)  # noqa: B010 - the same


def passes_items_through(iterator: Any) -> bool:
    """Whether draws that yield None do no harm: nothing between the loop and the loader looks at the items."""
    return isinstance(iterator, (LoaderIter, ReplayPoint)) or type(iterator) in (enumerate, zip)
