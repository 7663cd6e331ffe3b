"""Results of the script's collectives: what a joiner needs to pass set-up and a shadow step without peers, and what a rank
that was interrupted after the gate needs to catch up with its peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import torch

from torchrelay.protocol.errors import JournalError, StateMismatchError, UnsupportedError
from torchrelay.shim.comm.collectives import OF_WRAPPERS_MAKING, SAME_ON_ALL_RANKS
from torchrelay.shim.comm.finished import FinishedCollective, LargeResults
from torchrelay.shim.journal import payload

_MAX_ENTRIES = 10_000
_MAX_AFTER_BYTES = 64 << 20
"""Results since the gate beyond this are not kept, or not as copies."""
RESULT = "collective."
"""The path of a large result, on its way to another process, begins with this."""

ByGroup = dict[str, list[FinishedCollective]]


def furthest(logs: Iterable[Sequence[FinishedCollective]]) -> ByGroup:
    """Return what the member that got furthest has done, of each group. `logs`: of several ranks, each in its own order."""
    found: ByGroup = {}
    for log in logs:
        own: ByGroup = {}
        for entry in log:
            own.setdefault(entry.group, []).append(entry)
        for group, entries in own.items():
            if len(entries) > len(found.get(group, ())):
                found[group] = entries
    return found


def without(by_group: ByGroup, done: Sequence[FinishedCollective]) -> ByGroup:
    """Return what is left for a rank that has done `done` itself."""
    left = {group: list(entries) for group, entries in by_group.items()}
    for entry in done:
        del left.get(entry.group, [])[:1]
    return left


def large_results(entries: Iterable[FinishedCollective]) -> Iterator[tuple[str, LargeResults]]:
    """Yield the large results, each with the path of its tensors but for their own numbers.

    `entries`: all since the gate, of one group or of many.
    """
    places: Counter[str] = Counter()
    for entry in entries:
        if isinstance(entry.results, LargeResults):
            yield f"{RESULT}{entry.group}.{places[entry.group]}.", entry.results
        places[entry.group] += 1


def give(by_group: ByGroup, received: Mapping[str, torch.Tensor]) -> None:
    """Put tensors that a donor has sent into the large results of what other ranks have finished since the gate."""
    for path, results in large_results(entry for entries in by_group.values() for entry in entries):
        tensors = [received.get(f"{path}{number}") for number in range(len(results.digests))]
        found = [tensor for tensor in tensors if tensor is not None]
        if len(found) == len(tensors):
            results.tensors = found
            results.is_copy = True


class CollectiveRecords:
    """`log` follows the nesting of the loops: set-up, then what came before each inner loop, then the step in flight.

    Loops cut it back to their own mark at their heads, so it does not grow with the number of steps.
    """

    def __init__(self, keep_own: Callable[[bytes], None] = lambda data: None) -> None:
        """Begin without records. `keep_own` puts this rank's own results since the gate where they outlive it."""
        self._keep_own = keep_own
        self.log: list[FinishedCollective] = []
        self.body_mark = 0
        """Where the step in flight begins in `log`."""
        self.after: list[FinishedCollective] = []
        """Since the latest gate, until the next one."""
        self._after_bytes = 0
        self.replay: ByGroup = {}
        """What others have finished of the same: answered before anything is communicated."""
        self.answers: list[FinishedCollective] | None = None
        """A joiner's, until it has entered: the lost rank's results. None when there are real peers."""
        self.is_alone = False
        """Whether what a joiner calls now goes unanswered: its results do not matter, and all that it leaves is put in place."""
        self.others: ByGroup | None = None
        """Instead of `answers`: what the other members of each group have finished, for a joiner behind its gate."""
        self.own: ByGroup = {}
        """What the lost rank itself had finished there, with the results that nobody else has."""

    # Where results come from: only these change it.

    def answer_with(self, entries: Iterable[FinishedCollective]) -> None:
        """Answer what a joiner calls with these entries, in their order, and with no peers."""
        self.answers = list(entries)

    def answer_from_others(self, finished: ByGroup, own: Sequence[FinishedCollective] = ()) -> None:
        """Answer what a joiner calls behind its gate.

        `finished`: what others are through with; `own`: what the lost rank had alone.
        """
        self.answers = []
        self.others = finished
        if own:
            self.own = furthest([own])

    def others_left(self) -> ByGroup:
        """Return what others are through with and this joiner is not. From here on nothing is answered from it any more."""
        left = self.others
        self.others = None
        return left or {}

    def have_peers(self, left: ByGroup) -> None:
        """Make a joiner the rank. `left`: what others are through with, and it is not."""
        self.answers = None
        self.replay = left

    def catch_up(self, finished: ByGroup) -> None:
        """Let this rank go forward to where other ranks are, which are through with `finished`."""
        self.replay = without(finished, self.after)

    def begin_after_gate(self) -> None:
        """Begin anew, as a gate was passed: nothing has followed it yet."""
        self.after = []
        self.replay = {}

    def enter_with(self, log: Iterable[FinishedCollective]) -> None:
        """Take over what the lost rank had recorded, where the joiner is now."""
        self.log = list(log)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Leave what is called within without an answer. Only for a joiner, which has no peers yet."""
        self.is_alone = True
        try:
            yield
        finally:
            self.is_alone = False

    @contextmanager
    def answering(self, entries: Iterable[FinishedCollective]) -> Iterator[None]:
        """Answer all that is called within with these entries, and with nothing else.

        Raises StateMismatchError where less is called.
        """
        before = self.answers
        left = [*entries]
        self.answers = left
        try:
            yield
        finally:
            self.answers = before
        if left:
            raise StateMismatchError(
                f"the lost rank called {left[0].name} as it drew a loop's item; this process did not"
            )

    def skip(self, count: int) -> None:
        """Skip answers in a joiner: the lost rank has called so many collectives where this process calls none."""
        if self.answers is not None:
            del self.answers[:count]

    def cut(self, mark: int) -> None:
        del self.log[mark:]

    def body(self) -> tuple[FinishedCollective, ...]:
        return tuple(self.log[self.body_mark :])

    def add(self, entry: FinishedCollective, *, after_gate: bool) -> None:
        if after_gate:
            self._add_after(entry)
        self._add_to_log(entry)

    def complete(self, entry: FinishedCollective, now: FinishedCollective) -> None:
        """Put `now` in the place of an entry of this log, if that is there still."""
        place = next((place for place, known in enumerate(self.log) if known is entry), None)
        if place is not None:
            self.log[place] = now

    def _add_to_log(self, entry: FinishedCollective) -> None:
        if len(self.log) < _MAX_ENTRIES:
            by_value = not isinstance(entry.results, LargeResults)  # tensors are held on to until the next gate alone
            self.log.append(entry if by_value else FinishedCollective(entry.name, entry.group, None))

    def behind_gate(self) -> Sequence[FinishedCollective]:
        """Let what was called since the head follow the latest gate, and return it: what seemed to be a further step is none."""
        for entry in self.body():
            self._add_after(entry)
        return self.after[len(self.after) - len(self.body()) :]

    def to_give(self) -> dict[str, torch.Tensor]:
        """Return the large results since the gate whose tensors still hold them, by path."""
        return {
            f"{path}{number}": tensor
            for path, results in large_results(self.after)
            if results.tensors is not None and (results.is_copy or results.are_in(results.tensors))
            for number, tensor in enumerate(results.tensors)
        }

    def _add_after(self, entry: FinishedCollective) -> None:
        kept_bytes = entry.size_bytes() + (self._after_bytes if self.after else 0)
        if kept_bytes <= _MAX_AFTER_BYTES:
            self._after_bytes = kept_bytes
            if isinstance(entry.results, LargeResults):
                entry.results.keep()
        elif not isinstance(entry.results, LargeResults):
            entry = FinishedCollective(entry.name, entry.group, None)
        self.after.append(entry)
        if entry.name not in SAME_ON_ALL_RANKS:
            with suppress(JournalError):  # no room for it: what was kept before is true still, and this one is refused
                self._keep_own(payload.dump(self.own_results()))

    def expects(self, name: str, group: str) -> bool:
        """Return whether this is what the lost rank called next."""
        following = self.answers[0] if self.answers else None
        return following is not None and (following.name, following.group) == (name, group)

    def answer(self, name: str, group: str, *, without_result: bool = False) -> FinishedCollective:
        """Return the recorded result of what is called now. `without_result`: the call gives this rank nothing.

        Raises StateMismatchError where this process takes another way than the lost rank did, or its peers are not there yet.
        """
        if self.others is not None:
            left = self.others.get(group)
            if not left:
                raise StateMismatchError(
                    f"the script calls {name}, which no other member of group {group!r} has finished"
                )
            first = _matching(left.pop(0), name, group)
            entry = self._own_result(first) or _for_all(first, without_result=without_result)
            self.after.append(entry)
            self._add_to_log(entry)  # it may be what a loop begins with, where a further new process has to know of it
            return entry
        if not self.answers:
            raise StateMismatchError(f"the script calls {name} where the lost rank did not")
        return _matching(self.answers.pop(0), name, group)

    def replayed(self, name: str, group: str, *, without_result: bool = False) -> FinishedCollective | None:
        """Return the result if others have finished this call already, else None.

        Raises UnsupportedError for a result that only the rank that had it knows.
        """
        left = self.replay.get(group)
        if not left:
            return None
        entry = _matching(left.pop(0), name, group)
        return self._own_result(entry) or _for_all(entry, without_result=without_result)

    def _own_result(self, of_others: FinishedCollective) -> FinishedCollective | None:
        """Return what the lost rank got of a collective whose result is one rank's own, if it had finished it."""
        place = sum(done.group == of_others.group for done in self.after)
        own = self.own.get(of_others.group, [])[place : place + 1]
        if of_others.name in SAME_ON_ALL_RANKS or not own or own[0].name != of_others.name or own[0].results is None:
            return None
        return own[0]

    def own_results(self) -> tuple[FinishedCollective, ...]:
        """Return all entries since the gate, with the results of those alone that other ranks cannot tell."""
        return tuple(
            FinishedCollective(e.name, e.group, None) if e.name in SAME_ON_ALL_RANKS else e for e in self.after
        )


def _for_all(entry: FinishedCollective, *, without_result: bool) -> FinishedCollective:
    if without_result:
        return FinishedCollective(entry.name, entry.group, None)
    if entry.name not in SAME_ON_ALL_RANKS or entry.results is None:
        raise UnsupportedError(
            f"{entry.name} after the optimizer step: its result was one rank's own or too large to keep, and the lost rank had not "
            "finished it"
        )
    return entry


def _matching(entry: FinishedCollective, name: str, group: str) -> FinishedCollective:
    if (entry.name, entry.group) != (name, group):
        raise StateMismatchError(
            f"the script calls {name} on group {group!r} where {entry.name} on {entry.group!r} was recorded"
        )
    return entry


def lasts(entry: FinishedCollective, members: int) -> bool:
    """Return whether every process that needs the results of this call after the gate can have them. `members`: of its group.

    True for results that are one rank's own: those are reported before.
    """
    results = entry.results
    if entry.name not in SAME_ON_ALL_RANKS:
        return True
    if not isinstance(results, LargeResults):
        return results is not None
    if results.is_new and members > 2:
        return False  # to those that stay and were interrupted in it, nobody gives tensors
    # A model that all ranks have drawn alike is there in any process; another one lasts until the script writes to it.
    return results.is_copy or (entry.name == OF_WRAPPERS_MAKING and not results.is_new)
