"""Results of the script's collectives: what a joiner needs to pass set-up and a shadow step without peers, and what a rank
that was interrupted after the gate needs to catch up with its peers."""

from __future__ import annotations

from torchrelay.protocol.errors import StateMismatchError, UnsupportedError
from torchrelay.shim.collectives import SAME_ON_ALL_RANKS, Entry

_MAX_ENTRIES = 10_000


class CollectiveRecords:
    """`log` follows the nesting of the loops: set-up, then what came before each inner loop, then the step in flight.

    Loops cut it back to their own mark at their heads, so it does not grow with the number of steps.
    """

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.body_mark = 0
        """Where the step in flight begins in `log`."""
        self.after: list[Entry] = []
        """Since the latest gate, until the next one."""
        self.replay: list[Entry] = []
        """What the others have finished of the same: answered before anything is communicated."""
        self.answers: list[Entry] | None = None
        """A joiner's, until it has entered: the lost rank's results. None when there are real peers."""
        self.answers_of_others = False
        """Whether `answers` are those of another rank than the lost one."""

    def cut(self, mark: int) -> None:
        del self.log[mark:]

    def body(self) -> tuple[Entry, ...]:
        return tuple(self.log[self.body_mark :])

    def add(self, entry: Entry, *, after_gate: bool) -> None:
        if len(self.log) < _MAX_ENTRIES:
            self.log.append(entry)
        if after_gate:
            self.after.append(entry)

    def answer(self, name: str, group: str) -> Entry:
        """Raises StateMismatchError where this process takes another way than the lost rank did."""
        if not self.answers:
            raise StateMismatchError(f"the script calls {name} where the lost rank did not")
        entry = _matching(self.answers.pop(0), name, group)
        return _for_all(entry) if self.answers_of_others else entry

    def replayed(self, name: str, group: str) -> Entry | None:
        """Raises UnsupportedError for a result that only the rank that had it knows."""
        if not self.replay:
            return None
        return _for_all(_matching(self.replay.pop(0), name, group))


def _for_all(entry: Entry) -> Entry:
    if entry.name not in SAME_ON_ALL_RANKS or entry.results is None:
        raise UnsupportedError(
            f"{entry.name} after the optimizer step: its result was one rank's own or too large to keep"
        )
    return entry


def _matching(entry: Entry, name: str, group: str) -> Entry:
    if (entry.name, entry.group) != (name, group):
        raise StateMismatchError(
            f"the script calls {name} on group {group!r} where {entry.name} on {entry.group!r} was recorded"
        )
    return entry
