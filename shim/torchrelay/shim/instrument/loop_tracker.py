"""The rewritten loops' other half: which loops are running, which of them is the training loop, when its head is reached."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, Protocol

import torch.utils.data

from torchrelay.shim.adapters.tensors import graph_order
from torchrelay.shim.capture import rng
from torchrelay.shim.instrument.activation import Activation
from torchrelay.shim.script.hidden_frames import hide_all, hide_this_frame
from torchrelay.shim.script.rewind import Rewind
from torchrelay.shim.script.sites import PACKAGES, SITES, Site, may_train

_MOST_ENTRIES = 64
"""So often a loop of an installed package is looked at, if it never was around an optimizer step."""
_DATA = os.path.join(os.path.dirname(torch.utils.data.__file__), "")


class Listener(Protocol):
    """Hears what the loops do: the engine of a rank, or a joiner on its way in."""

    def entering(self, activation: Activation, depth: int) -> None: ...
    def made(self, activation: Activation, depth: int) -> None: ...
    def at_head(self, activation: Activation, depth: int) -> None: ...
    def ended(self, activation: Activation) -> None: ...
    def caught(self, error: BaseException, activation: Activation) -> bool: ...
    def may_be_of_garbage(self) -> bool: ...
    def before_draw(self, iterator: Any) -> Any: ...
    def drawn(self, iterator: Any, default: tuple[Any, ...]) -> Any: ...
    def trained_in_draw(self) -> None: ...


class Loop:
    """Stands for the iterator of a rewritten `for`."""

    __slots__ = ("_activation", "_iterator", "_tracker")

    def __init__(self, tracker: LoopTracker, activation: Activation, iterable: Iterable[Any]) -> None:
        self._tracker = tracker
        self._activation = activation
        try:
            self._iterator = activation.iterator = iter(iterable)
        except BaseException as error:
            hide_this_frame(error)
            raise

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        activation = self._activation
        if activation.replay:
            activation.replay = False
            return activation.item
        activation.graph_at = graph_order.now()
        self._tracker.drawing = activation
        activation.before = self._tracker.before_draw(activation.iterator)
        try:
            item = self._tracker.draw(activation.iterator)
        except StopIteration:
            self._tracker.left(activation)
            raise
        except BaseException as error:
            hide_all(error)
            raise
        finally:
            self._tracker.drawing = None
        activation.item = item
        self._tracker.head(activation)
        activation.replay = False  # the head may have been taken back itself
        return activation.item

    def __del__(self) -> None:
        self._tracker.left(self._activation)


class LoopTracker:
    """`live` is False until the job is protected, and again when it is not: then every call returns at once."""

    def __init__(self) -> None:
        self.live = False
        self.listener: Listener | None = None
        self.stack: list[Activation] = []
        self.boundary_sites: set[str] = set()
        """The loops that train: several where one follows the other."""
        self.watch_inside = False
        """Several optimizer steps were seen in one iteration: the training loop may be a deeper one."""
        self.drawing: Activation | None = None
        """Whose iterator is asked for its next item."""
        self.asking: FrameType | None = None
        """Who has called `next`, as long as that takes."""
        self._steps = 0
        """How many optimizer steps were asked about."""
        self.is_over: Callable[[Any], bool] = lambda _: False
        """Whether a loader's iterator has yielded all it had."""
        self._entries: dict[str, int] = {}
        self._in_packages: dict[str, int] = {}
        """How often loops of installed packages were entered that never were around a step."""
        self._around_steps: set[str] = set()
        self.takes: Callable[[Exception], bool] = lambda error: False
        """Of an exception of ours: whether the script goes on all the same. See `guard`."""
        self._main = threading.main_thread().ident

    def enter(self, site: str) -> int:
        """Note that a loop statement starts. Return the place of its activation + 1, or 0 for a loop that does not matter."""
        if not self.live or threading.get_ident() != self._main or self._in_packages.get(site, 0) >= _MOST_ENTRIES:
            return 0
        frame = sys._getframe(1)
        try:
            return self._enter(site, frame)
        except Exception as error:
            if not self.takes(error):
                raise
            return 0

    def _enter(self, site: str, frame: FrameType) -> int:
        self._prune(frame, SITES[site])
        if (self.inside_boundary() and not self.watch_inside) or self._draws_data(frame):
            return 0
        if SITES[site].file in PACKAGES and site not in self._around_steps:
            self._in_packages[site] = self._in_packages.get(site, 0) + 1
        entries = self.stack[-1].inner if self.stack else self._entries
        entries[site] = entries.get(site, 0) + 1
        around = self.stack[-1] if self.stack else None
        activation = Activation(site, frame, rng.capture(), entries[site], around)
        self.stack.append(activation)
        assert self.listener is not None
        self.listener.entering(activation, len(self.stack) - 1)
        return len(self.stack)

    def loop(self, site: str, token: int, iterable: Iterable[Any]) -> Iterable[Any]:
        if token == 0 or token > len(self.stack) or self.stack[token - 1].site != site:
            return iterable
        activation = self.stack[token - 1]
        loop = Loop(self, activation, iterable)
        assert self.listener is not None
        try:
            self.listener.made(activation, token - 1)
        except Exception as error:
            if not self.takes(error):
                raise
        return loop

    def tick(self, site: str) -> None:
        """Note the head of a `while` whose condition was true."""
        if not self.live or threading.get_ident() != self._main:
            return
        frame = sys._getframe(1)
        for activation in reversed(self.stack):
            if activation.site == site and activation.frame is frame:
                if activation.replay:
                    activation.replay = False
                else:
                    activation.graph_at = graph_order.now()
                    self.head(activation)
                    activation.replay = False
                return

    def again(self, site: str) -> bool:
        """Return whether a `while` goes on at the head that it has gone back to, without a look at its condition."""
        if not self.stack or threading.get_ident() != self._main:
            return False
        frame = sys._getframe(1)
        return any(a.replay for a in reversed(self.stack) if a.site == site and a.frame is frame)

    def head(self, activation: Activation) -> None:
        if not self.live or activation not in self.stack:
            return
        depth = self.stack.index(activation)
        del self.stack[depth + 1 :]
        activation.heads += 1
        activation.inner.clear()
        assert self.listener is not None
        try:
            self.listener.at_head(activation, depth)
        except Exception as error:
            if not self.takes(error):
                raise
        activation.steps = 0

    def left(self, activation: Activation) -> None:
        if activation in self.stack:
            del self.stack[self.stack.index(activation) :]
            if self.live and self.listener is not None:
                try:
                    self.listener.ended(activation)
                except Exception as error:
                    if not self.takes(error):
                        raise

    def rewound(self, site: str) -> bool:
        """Return, in the except clause of a loop, whether the exception was ours, and the loop goes on."""
        error = sys.exc_info()[1]
        if error is None or isinstance(error, GeneratorExit):  # a generator that is closed has to end
            return False
        if self.listener is None or threading.get_ident() != self._main:
            return False
        frame = sys._getframe(1)
        try:
            return self._rewound(error, site, frame)
        except Exception as other:
            if other is error or not self.takes(other):
                raise
            return False

    def _rewound(self, error: BaseException, site: str, frame: FrameType) -> bool:
        assert self.listener is not None
        if isinstance(error, Rewind):
            if error.activation.site != site or error.activation.frame is not frame:
                return False
            return self.listener.caught(error, error.activation)
        if not self.live or not (isinstance(error, RuntimeError) or self.listener.may_be_of_garbage()):
            return False
        for activation in reversed(self.stack):
            if activation.site == site and activation.frame is frame:
                return self.listener.caught(error, activation)
        return False

    def before_draw(self, iterator: Any) -> Any:
        return self.listener.before_draw(iterator) if self.live and self.listener is not None else None

    def draw(self, iterator: Any) -> Any:
        """Return the next item of a loop. One that a rewind has to give again comes from the record of the draws."""
        if not self.live or self.listener is None:
            return next(iterator)
        return self.listener.drawn(iterator, ())

    def next(self, iterator: Any, *default: Any) -> Any:
        if not self.live or self.listener is None or threading.get_ident() != self._main:
            try:
                return next(iterator, *default)
            except BaseException as error:
                hide_this_frame(error)
                raise
        asking = self.asking
        self.asking = sys._getframe(1)
        steps = self._steps
        try:
            item = self.listener.drawn(iterator, default)
        finally:
            self.asking = asking
        if self._steps != steps:
            self.listener.trained_in_draw()
        return item

    def loader_created(self, iterator: Any) -> None:
        """Note that a data loader's iterator is made, or begins again.

        While a loop's iterable is evaluated it belongs to that loop, and so does one that the loop's iterator makes later: a
        generator's next epoch. None stands for those that are over.
        """
        if not self.stack or (self.stack[-1].heads > 0 and self.drawing is not self.stack[-1]):
            return
        loaders = self.stack[-1].loaders
        loaders[:] = [None if known is None or known is iterator or self.is_over(known) else known for known in loaders]
        loaders.append(iterator)

    def computing(self, oldest: int = sys.maxsize) -> None:
        """Note that gradients are about to be computed, through a graph that was begun at `oldest`, as `graph_order` has it.

        A loop whose iteration has begun since then is none that trains: callbacks, of which one computes the gradients of a loss.
        """
        for activation in self.stack:
            activation.computes = activation.computes or oldest >= activation.graph_at

    def _draws_data(self, frame: FrameType | None) -> bool:
        """Return whether `frame` is called by a data loader, a generator that makes data, or what a loop draws from.

        No process can be taken into the middle of these: their loops never train.
        """
        if self.drawing is not None:
            return True
        known = self.stack[-1].frame if self.stack else None
        while frame is not None and frame is not known:
            code = frame.f_code
            if code.co_filename.startswith(_DATA) or (code.co_flags & inspect.CO_GENERATOR and not may_train(code)):
                return True
            frame = frame.f_back
        return False

    def around_step(self, frame: FrameType) -> list[Activation]:
        """Return the loops around an optimizer step in which gradients are computed, but not those that go over optimizers alone.

        Returns all, where no gradients were seen. A loop over what the step returns is not among them: it has not begun.
        """
        self._steps += 1
        alive = self.running(frame)
        while alive and not (alive[-1].heads or alive[-1].iterator is not None):
            alive.pop()
        count = sum(activation.computes for activation in alive)
        around = alive[:count] if count else alive
        for activation in around:
            if activation.site not in self._around_steps:
                self._around_steps.add(activation.site)
                self._in_packages.pop(activation.site, None)
        return around

    def is_in_draw(self, frame: FrameType | None, innermost: Activation | None) -> bool:
        """Return whether `frame` makes an item that is drawn in the loop `innermost`, or outside of it.

        It is drawn by the loop's `for`, or by `next`.
        """
        if self.drawing is not None or self.asking is None:
            return self.drawing is not None
        end = innermost.frame if innermost is not None else None
        while frame is not None:
            if frame is self.asking:
                return True
            if frame is end:
                return False
            frame = frame.f_back
        return False

    def inside_boundary(self) -> bool:
        return any(a.site in self.boundary_sites for a in self.stack)

    def running(self, frame: FrameType | None) -> list[Activation]:
        """Return the activations whose loop encloses what `frame` does now, outermost first. Drop the others."""
        alive = self.around(frame)
        del self.stack[len(alive) :]
        return alive

    def around(self, frame: FrameType | None) -> list[Activation]:
        """Return the same as `running` and drop nothing: the caller may be another thread, or a hook."""
        callers = set()
        while frame is not None:
            callers.add(frame)
            frame = frame.f_back
        alive = []
        for activation in self.stack:
            site = SITES[activation.site]
            if activation.frame not in callers or not site.line <= activation.frame.f_lineno <= site.end_line:
                break
            alive.append(activation)
        return alive

    def _prune(self, frame: FrameType, site: Site) -> None:
        """Drop activations that were left by break, return or an exception."""
        parents = set()
        parent = site.parent
        while parent is not None:
            parents.add(parent)
            parent = SITES[parent].parent
        while self.stack:
            top = self.stack[-1]
            if top.frame is frame:
                if top.site in parents:
                    return
            else:
                caller = frame.f_back
                while caller is not None and caller is not top.frame:
                    caller = caller.f_back
                outer = SITES[top.site]
                if caller is not None and outer.line <= caller.f_lineno <= outer.end_line:
                    return
            self.stack.pop()
