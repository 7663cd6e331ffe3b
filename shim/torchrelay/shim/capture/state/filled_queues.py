"""Queues of Python's that other threads fill, such as batches that are fetched ahead: how far training has taken from each.

What is in such a queue is the thread's affair. What training has taken is known by a count, and by a mark of the items. A new
process has a queue that its own thread fills; it takes as many items from that, and must have come to the same mark.

Leans on `queue.Queue`, on its attributes `queue`, `maxsize` and `unfinished_tasks`, and on its methods `_put` and `_get`. Seen on
CPython 3.11.
"""

from __future__ import annotations

import enum
import functools
import itertools
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.state.parts import attributes
from torchrelay.shim.capture.state.thread_objects import ThreadObjects
from torchrelay.shim.capture.values.by_identity import ByIdentity
from torchrelay.shim.capture.values.item_mark import TakenItems

_CONTENT = ("maxsize", "queue", "unfinished_tasks")
_LOOK_S = 1.0
"""So often a process that waits for an item looks whether anybody can still put one in."""
_MOST_LOOKS = 60
"""So often it looks where nobody has ever put one in: no thread may have been begun here."""


class QueueKind(enum.Enum):
    AHEAD = enum.auto()
    """Filled by a thread that fetches ahead."""
    OWN = enum.auto()
    """Used by training alone: what is in it is its state."""


class QueueUse:
    """Who uses one queue."""

    def __init__(self, *, of_set_up: bool, in_order: bool) -> None:
        self.place = TakenItems(0, b"")
        """Of the items that training has taken, as of where it stands: a step that is done again takes its items again."""
        self.of_set_up = of_set_up
        self.in_order = in_order
        """Whether items come out as they went in, and not by how far the threads were."""
        self.fillers: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        """Threads beside the training thread that have put something into it."""
        self.is_filled = False
        """Whether there were any."""
        self.counts_as: QueueKind | None = None
        """What it counts as in walks, as of the latest boundary."""
        self.is_given = False
        """Whether the training thread has put something into it."""
        self.is_taken = False
        """Whether the script's training thread has taken something out of it."""
        self.is_polled = False
        """Whether training looks how full it is, or tells it that items are done: what it does depends on how far the thread is."""
        self.is_shared = False
        """Whether other threads take from it."""
        self.is_answered = False
        """Whether what fills it takes from another queue that training fills: what it puts in answers what training asks."""

    @property
    def is_ahead(self) -> bool:
        """Return whether it holds what a thread fetches ahead for training, which tells that thread nothing."""
        is_fetched = self.is_filled and self.is_taken and self.in_order
        return is_fetched and not (self.is_given or self.is_shared or self.is_answered or self.is_polled)

    @property
    def is_own(self) -> bool:
        """Return whether only training uses it: what is in it is its state."""
        return not (self.is_filled or self.is_shared)

    def settle(self) -> None:
        """Note what the queue counts as until the next boundary."""
        self.counts_as = QueueKind.AHEAD if self.is_ahead else QueueKind.OWN if self.is_own else None

    @property
    def is_used(self) -> bool:
        return self.is_filled or self.is_given or self.is_taken

    def put(self, place: TakenItems) -> None:
        self.place = place

    def effect(self) -> Callable[[], None]:
        """Return what does again to the place what the present draw has done."""
        return functools.partial(self.put, self.place)


class FilledQueues:
    """What is known of the queues of this process."""

    def __init__(self) -> None:
        self._uses: ByIdentity[QueueUse] = ByIdentity()
        self._asked: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        """Threads that take from a queue that training fills."""
        self._known: dict[int, QueueKind | None] = {}
        self._adding = threading.Lock()
        self.threads = ThreadObjects()
        """What the threads work with that fetch ahead."""

    def made(self, new: Any, *, in_set_up: bool) -> None:
        """Note a new queue. `in_set_up`: outside of every loop, so that a new process has one, too, before it enters any."""
        self._uses.put(new, QueueUse(of_set_up=in_set_up, in_order=_is_in_order(new)))

    def use(self, of: Any) -> QueueUse:
        found = self._uses.get(of)
        if found is None:  # made before anybody looked
            self.made(of, in_set_up=True)
            found = self.use(of)
        return found

    def known(self, of: Any) -> QueueUse | None:
        return self._uses.get(of)

    def given(self, to: Any, *, by_training: bool) -> QueueUse:
        """Note that something is put into a queue, and return who uses it."""
        use = self.use(to)
        if by_training:
            use.is_given = True
            return use
        thread = threading.current_thread()
        use.is_filled = True
        if thread not in use.fillers:
            with self._adding:
                use.fillers.add(thread)
        use.is_answered = use.is_answered or thread in self._asked
        return use

    def taken_elsewhere(self, taken_from: Any) -> None:
        """Note that another thread takes from a queue."""
        use = self.use(taken_from)
        use.is_shared = True
        if use.is_given:
            self._asked.add(threading.current_thread())

    def at_boundary(self) -> bool:
        """Settle what counts as what until the next boundary.

        Return whether another queue is state, or none any more: nothing else tells a walk to look anew.
        """
        for obj in self._uses.objects():
            self.use(obj).settle()
        now = {id(obj): use.counts_as for obj in self._uses.objects() if (use := self.use(obj)).is_used}
        then = self._known
        self._known = now
        return now != then and any((*now.values(), *then.values()))

    def is_filler(self, thread: threading.Thread) -> bool:
        """Return whether the thread fetches ahead, and only does what is told apart from training."""
        with self._adding:
            return any(thread in use.fillers for _, use in self.ahead())

    def fillers(self) -> list[threading.Thread]:
        """Return the threads that run and fetch ahead."""
        with self._adding:
            return [thread for _, use in self.ahead() for thread in use.fillers if thread.is_alive()]

    def go_back(self) -> set[int]:
        """Return the queues whose items come again to a rank that goes back, and to which a new process can be led, by id."""
        return {
            id(obj)
            for obj in self._uses.objects()
            if (use := self.use(obj)).of_set_up and use.counts_as is QueueKind.AHEAD
        }

    def ahead(self) -> Iterator[tuple[Any, QueueUse]]:
        """Yield the queues that hold what threads fetch ahead."""
        for obj in self._uses.objects():
            use = self.use(obj)
            if use.is_ahead:
                yield obj, use

    def lead(self, to: Any, place: TakenItems, owner: Any) -> None:
        """Take items until as many were taken as where `place` was noted.

        `owner`: what holds the queue. Where nobody fills it yet, and `owner` is an iterator, that is asked, since it may have to
        begin a thread first. Raises StateMismatchError where the items are others.
        """
        use = self.use(to)
        use.is_taken = True
        use.counts_as = QueueKind.AHEAD
        while use.place.number < place.number:
            if not use.is_filled and hasattr(type(owner), "__next__"):
                before = use.place.number
                next(owner, None)
                if use.place.number > before:
                    continue
            use.put(use.place.after(_take(to, use)))
        if use.place != place:
            raise StateMismatchError(
                f"a thread that fetches ahead has put other items into its queue here: {use.place.number} were taken, "
                f"and {place.number} in the lost rank"
            )
        self.threads.look(self.fillers())


def _take(taken_from: Any, use: QueueUse) -> Any:
    get: Any = queue.Queue.get
    get = getattr(get, "__wrapped__", get)  # past the hook that counts, and past what a subclass makes of items
    for _ in itertools.count() if use.is_filled else range(_MOST_LOOKS):
        try:
            return get(taken_from, timeout=_LOOK_S)
        except queue.Empty as e:
            if use.is_filled and not any(thread.is_alive() for thread in use.fillers):
                raise StateMismatchError(
                    f"a thread that fetches ahead has ended here after {use.place.number} items"
                ) from e
    raise StateMismatchError("no thread has put anything here into a queue that one fills in the lost rank")


def _is_in_order(new: Any) -> bool:
    own: Any = queue.Queue
    return (type(new)._put, type(new)._get) == (own._put, own._get)


def content_of(own: Any) -> dict[str, Any]:
    """Return what is state of a queue that training alone uses."""
    found = attributes(own)
    return {name: found[name] for name in _CONTENT if name in found}


def check_not_in_doubt(threads: ThreadObjects, before: Mapping[int, Any], after: Mapping[int, Any]) -> None:
    """Raise StateMismatchError if objects were put to another content that a thread which fetches ahead may be at work with."""
    found = threads.in_doubt(before, after)
    if found:
        raise StateMismatchError(
            f"{', '.join(found[:3])}: a thread that fetches ahead works with it, and whether training or the thread "
            "changes it is not known"
        )


def is_running_thread(value: Any) -> bool:
    return isinstance(value, threading.Thread) and value.is_alive()
