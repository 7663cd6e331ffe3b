"""When a sampler, or a data set that chooses by itself (a stream), has drawn random numbers from generators that others had used
since it did last.

An iterator of another process that is led forward without the steps in between finds these generators otherwise: it would draw
another order there, which the samples that are still to come depend on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from torchrelay.shim.capture import rng
from torchrelay.shim.capture.iteration.loader_order import Order, order_generators, order_of, set_order
from torchrelay.shim.capture.values.alike import alike
from torchrelay.shim.journal.payload import SamplerTurn

MOST = 64
"""So many are written down of an epoch; a sampler that has more cannot be led. Of a stream nobody knows whether the numbers decide
which items come next, or only what is made of one: it is led, and the item that it comes to has to be the recorded one."""


class _Now(NamedTuple):
    generators: rng.RngState
    order: Order
    others: Mapping[int, Any]


def _fields(now: _Now) -> list[dict[str, Any]]:
    """Return the plain attributes of the samplers, such as the epoch."""
    return [fields for _, fields in now.order]


class SamplerRngLog:
    """The turns of one epoch of one iterator. `others()`: the state of each generator among the script's objects, by its id.

    `is_stream`: it is asked for items, not for their places.
    """

    def __init__(
        self, others: Callable[[], Mapping[int, Any]], of: Iterable[SamplerTurn] = (), *, is_stream: bool = False
    ) -> None:
        self._others = others
        self._is_stream = is_stream
        self._asked = 0
        self._after: _Now | None = None
        self._to_come = deque(of)
        """A joiner's: those of the lost rank."""
        self.found: list[SamplerTurn] = []
        self.moved: frozenset[int] = frozenset()
        """Which of `others` the sampler has used when it was asked last."""
        self.cannot_be_led = False
        """Others than this process's sampler have used a generator that could not be put back in another process, or too often."""

    def again(self, of: Iterable[SamplerTurn] = ()) -> SamplerRngLog:
        """Return turns for the next epoch, or from here on as another process had them."""
        return SamplerRngLog(self._others, of, is_stream=self._is_stream)

    def ask(self, loader: Any, next_index: Callable[[], Any]) -> Any:
        """Return what the sampler says next, and note when it has drawn random numbers for that."""
        if self._to_come and self._to_come[0].asked == self._asked:
            turn = self._to_come.popleft()
            rng.restore(turn.generators)
            set_order(loader, turn.order)
        before = self._now(loader)
        try:
            return next_index()
        finally:
            now = self._now(loader)
            if not alike(now, before):
                self.moved |= {a for a, state in before.others.items() if not alike(state, now.others.get(a))}
                if self._after is not None:
                    self._compare(before, now, self._after)
            elif self._after is not None and len(self.found) < MOST and _fields(before) != _fields(self._after):
                # The script has told a sampler its epoch, in the middle of an iterator that goes on in the next one.
                self.found.append(SamplerTurn(self._asked, before.generators, before.order))
            self._after = now
            self._asked += 1

    def _compare(self, before: _Now, now: _Now, then: _Now) -> None:
        moved = any(b != a and b != t for b, a, t in zip(before.generators, now.generators, then.generators))
        is_turn = moved or not (alike(before.order, now.order) or alike(before.order, then.order))
        if is_turn and not (self._is_stream and len(self.found) == MOST):
            self.found.append(SamplerTurn(self._asked, before.generators, before.order))
        self.cannot_be_led |= len(self.found) > MOST
        for address in self.moved & then.others.keys():
            self.cannot_be_led |= not alike(before.others[address], then.others[address])

    def _now(self, loader: Any) -> _Now:
        others = self._others()
        if others:
            own = order_generators(loader)
            others = {address: state for address, state in others.items() if address not in own}
        return _Now(rng.capture(), order_of(loader), others)
