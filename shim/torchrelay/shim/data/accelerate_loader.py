"""accelerate's loader draws one batch ahead, in a generator: its place in there, taken down and put back.

Leans on the generator function `DataLoaderShard.__iter__` of accelerate.data_loader: on the names of its local variables, and
on its two `yield`s, the second one for the last batch; and on what it writes while it runs: attributes of the loader and of its
`gradient_state`, which lists the loaders in use. Seen on accelerate 1.15.0; where it looks otherwise, its iterators are
left to be named in the protection report.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import FrameType, GeneratorType, ModuleType
from typing import Any, TypeAlias

from torchrelay.protocol.errors import StateMismatchError, UnsupportedError
from torchrelay.shim.adapters.cpython import frames
from torchrelay.shim.capture.iteration.loader_order import owners, plain_fields
from torchrelay.shim.capture.values.replay_point import ABSENT, ReplayPoint
from torchrelay.shim.data.iterator_replay import IteratorReplay

_NEW, _AHEAD, _LAST, _OVER = range(4)
"""Where the generator is: not started, in the `yield` with a batch ahead, in that of the last batch, at its end."""

_LOCALS = frozenset({"self", "dataloader_iter", "current_batch", "next_batch", "batch_index"})

Batches: TypeAlias = "GeneratorType[Any, None, None]"
Function = Callable[[Any], Batches]


class _Stub:
    """Stands for the loader while a new generator is led to its place: nothing happens."""

    rng_types = device = None
    skip_batches = iteration = 0
    end_of_dataloader = False

    def __init__(self, batches: int) -> None:
        self.base_dataloader = [None] * batches

    def begin(self) -> None: ...
    def end(self) -> None: ...
    def set_epoch(self, epoch: int) -> None: ...
    def _update_state_dict(self) -> None: ...


def _led(function: Function, place: int) -> Batches:
    generator = function(_Stub(2 if place == _AHEAD else 1))
    if place != _NEW:
        next(generator)
    if place == _OVER:
        for _ in generator:
            raise UnsupportedError("accelerate's loader goes on after its last batch")
    return generator


def _frame(generator: Batches) -> FrameType:
    if generator.gi_frame is None:
        raise UnsupportedError("accelerate's loader is over where it should wait")
    return generator.gi_frame


class LoaderPlaces:
    """The places in which a generator of this function can stand, told from generators that are led there."""

    def __init__(self, function: Function) -> None:
        """Find the places of `function`. Raises UnsupportedError for a function that looks otherwise."""
        self.function = function
        if frozenset(function.__code__.co_varnames) != _LOCALS:
            raise UnsupportedError("accelerate's loader has other variables than those that are known")
        try:
            led = {at: _led(function, at) for at in (_AHEAD, _LAST, _OVER)}
            self._instructions = {_frame(led[at]).f_lasti: at for at in (_AHEAD, _LAST)}
        except (AttributeError, TypeError, StopIteration) as e:
            raise UnsupportedError(f"accelerate's loader works otherwise than is known: {e}") from e
        if len(self._instructions) != 2:
            raise UnsupportedError("accelerate's loader yields its last batch where it yields the others")

    def of(self, generator: Batches) -> int:
        """Return the place that the generator stands in. Raises UnsupportedError where it is none that is known."""
        state = inspect.getgeneratorstate(generator)
        if state in (inspect.GEN_CREATED, inspect.GEN_CLOSED):
            return _NEW if state == inspect.GEN_CREATED else _OVER
        at = self._instructions.get(_frame(generator).f_lasti)
        if at is None:
            raise UnsupportedError("accelerate's loader stands in a place that is not known")
        return at


class LookAhead(ReplayPoint):
    """An iterator over the loader, with a generator of its own that can be made anew at any place."""

    def __init__(self, places: LoaderPlaces, loader: Any, draws: IteratorReplay) -> None:
        self._places = places
        self.loader = loader
        self._draws = draws
        self._generator = places.function(loader)
        self._end: tuple[int, Callable[[], None]] | None = None
        """How many rewinds there had been when it ended, and what its end had changed."""
        self._broken = False
        self._began = -1
        """After which boundary it was first drawn from."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._draws.draw(self, LookAhead._advance)

    def close(self) -> None:
        self._generator.close()

    def _advance(self) -> Any:
        at = self._places.of(self._generator)
        if self._broken:
            # It would say StopIteration, and frameworks take that for the end of training.
            raise StateMismatchError("accelerate's loader was interrupted in the middle of a batch, and cannot go on")
        if at == _OVER:
            self._end_again()
            raise StopIteration
        if at == _NEW:
            self._began = self._draws.boundary
        try:
            with self._draws.ahead():
                return self._generator.send(None)
        except StopIteration:
            self._end = (self._draws.rewinds, self._effects())
            raise
        except BaseException:
            # A generator that an exception has gone through is over; one that had not drawn yet can begin again.
            if at == _NEW:
                self._generator = self._places.function(self.loader)
            else:
                self._broken = True
            raise
        finally:
            self._draws.touched.append(self._effects)

    def _effects(self) -> Callable[[], None]:
        """Return a function that does again what a draw leaves behind elsewhere, for when the draw is answered from the record."""
        changed = [(owner, plain_fields(owner)) for owner in owners(self.loader)]
        state = self.loader.gradient_state
        references = list(state._dataloader_references_ref)

        def again() -> None:
            for owner, fields in changed:
                vars(owner).update(fields)
            state._dataloader_references_ref = references[:]

        return again

    def _end_again(self) -> None:
        if self._end is not None and self._end[0] != self._draws.rewinds:
            self._end[1]()
            self._end = (self._draws.rewinds, self._end[1])

    def place(self) -> dict[str, Any]:
        """Return where it is; `iterator` and `index` are the generator's own."""
        at = self._places.of(self._generator)
        found = {"loader": self.loader, "at": at, "iterator": None, "index": 0}
        if at in (_AHEAD, _LAST):
            now = frames.read_locals(_frame(self._generator))
            found.update(iterator=now["dataloader_iter"], index=now["batch_index"])
        return found

    def begin_again(self, boundary: int) -> bool:
        if self._began != boundary:
            return False
        self._generator = self._places.function(self.loader)
        self._end = None
        self._broken = False
        return True

    def go_to(self, place: dict[str, Any], last: Any) -> None:
        at = place["at"]
        if at == _NEW:
            self._generator = self._places.function(self.loader)
            return
        if at != _OVER and (place.get("iterator") is None or (at == _AHEAD and last is ABSENT)):
            raise StateMismatchError("accelerate's loader draws from an iterator that was not led to its place here")
        self._generator = _led(self._places.function, at)
        if at != _OVER:
            values = {"self": self.loader, "dataloader_iter": place["iterator"], "batch_index": place["index"]}
            frames.set_locals(_frame(self._generator), {**values, "current_batch": None, "next_batch": last})


def install(module: ModuleType, draws: Callable[[], IteratorReplay | None]) -> None:
    """Put hooks into the loader class. `draws`: those of the engine, on the training thread; None for a loop of no interest.

    Raises UnsupportedError or AttributeError where accelerate is built differently.
    """
    cls: Any = module.DataLoaderShard
    original = cls.__iter__
    places = LoaderPlaces(original)

    @functools.wraps(original)
    def __iter__(self: Any) -> Any:
        now = draws()
        return original(self) if now is None else LookAhead(places, self, now)

    cls.__iter__ = __iter__
