"""A joiner's way through the script's loops: past those that are over, into those around the place where it enters.

Of a training loop that is over it does the last iteration alone, with tensors that are its own affair: what comes of it is
replaced by what the journals say, at that loop's last gate, and wholly where it enters.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from torchrelay.protocol.errors import MovedOnError, StateMismatchError
from torchrelay.shim.adapters.process_groups import process_group
from torchrelay.shim.capture import rng
from torchrelay.shim.data import data_loader
from torchrelay.shim.instrument.activation import Activation
from torchrelay.shim.join.recorded import RecordedPlace
from torchrelay.shim.journal import payload
from torchrelay.shim.script.sites import SITES, changed_since

if TYPE_CHECKING:
    from torchrelay.shim.step.engine import Engine

_EXHAUSTED = object()
_SHOWN_FILES = 3


@dataclass
class Goal:
    """A boundary to be led to. `depth`: of the outermost loop that is not entered on the way to the goal after this one.

    `before`: where it is entered, the collectives before the outermost loop, and the training loops that were over by then.
    """

    journal: payload.BoundaryJournal
    trees: tuple[Any, ...]
    depth: int
    gate: payload.GateJournal | None = None
    last: bool = False
    before: tuple[tuple[Any, ...], tuple[payload.PassedLoop, ...]] = ((), ())
    heads: tuple[int, ...] = ()
    """Of a loop that is over, as in PassedLoop."""


class Joining(Protocol):
    """What is done with a process at the places that it has come to."""

    def wait_for_plan(self) -> payload.BoundaryJournal: ...
    def newer_set_up(self) -> payload.SetUpJournal | None: ...
    def put(self, goal: Goal, state: RecordedPlace, innermost: FrameType) -> None: ...
    def enter(self, goal: Goal, activation: Activation) -> None: ...
    def check_answered(self) -> None: ...


def check_texts(set_up: payload.SetUpJournal) -> None:
    """Raise StateMismatchError if set-up has loaded a file here that held something else when the rank loaded it."""
    if changed := changed_since(set_up.texts):
        names = ", ".join(changed[:_SHOWN_FILES])
        raise StateMismatchError(f"{names}: changed since the rank was started that runs it")


def _goal(passed: payload.PassedLoop, depth: int) -> Goal:
    gate = payload.load(passed.gate, payload.GateJournal) if passed.gate else None
    journal = payload.load(passed.journal, payload.BoundaryJournal)
    return Goal(journal, passed.trees, depth, gate, heads=passed.heads)


class FastForward:
    """Listener of the loops until the joiner has entered."""

    def __init__(self, engine: Engine, set_up: payload.SetUpJournal, joining: Joining) -> None:
        self._engine = engine
        self._set_up = set_up
        self._joining = joining
        self._goals = deque(_goal(passed, 0) for passed in set_up.passed)
        self._chain: list[Activation] = []
        """Of the loops that are running, those that the next goal is in, as far as they were reached."""
        self._stepping: Activation | None = None
        self._heads = 0
        """The training loop whose last iteration is gone through, and how often its head had been reached when it ended."""
        self._early = 0
        self._over: list[tuple[Activation, int]] = []
        """Loops of that one that end with it, and how often their heads had been reached then."""
        self._own: dict[int, Any] = {}
        """Iterators of loops that are put to their place, by id of the activation: until its head nothing is drawn from them."""

    # What the loops tell.

    def entering(self, activation: Activation, depth: int) -> None:
        if depth != len(self._chain):
            return
        if depth == 0:
            self._look_for_plan(activation)
        if not self._goals:
            return
        links = self._goals[0].journal.links
        if depth >= len(links) or (activation.site, activation.entry) != (links[depth].site, links[depth].entry):
            return
        self._chain.append(activation)
        if self._engine.set_up is not None:
            self._engine.set_up.end()  # what loops draw on the way, the state at their heads replaces
        link = links[depth]
        rng.restore(link.entry_rng)
        self._engine.draws.expected = deque(None if r is None else (r, True) for r in link.loaders)

    def _look_for_plan(self, activation: Activation) -> None:
        """Wait for the plan, where the others say where they meet, at a loop at which the script may have to be entered."""
        place = (activation.site, activation.entry)
        goals = self._goals
        set_up = self._set_up
        if goals and goals[-1].last:
            return
        before = set_up.collectives, set_up.passed
        if not goals and place == (set_up.site, set_up.entry):
            journal = self._joining.wait_for_plan()
            if self._first(Goal(journal, (), 0)) != place and self._is_over_by_now(place):
                set_up = self._set_up
                before = set_up.collectives, set_up.passed
            goals.append(Goal(journal, set_up.trees, 0, last=True, before=before))
        elif set_up.young and len(goals) == 1 and place == self._first(goals[0]):
            journal = self._joining.wait_for_plan()
            if self._first(Goal(journal, (), 0)) == place:
                own = set_up.collectives[: set_up.passed[-1].mark], set_up.passed[:-1]
                goals[0] = Goal(journal, goals[0].trees, 0, last=True, before=own)
                self._engine.records.answer_with(())
            else:
                goals.append(Goal(journal, set_up.trees, 0, last=True, before=before))
        else:
            return
        if self._first(goals[-1]) not in (place, (set_up.site, set_up.entry)):
            raise MovedOnError("the training loop moved on to another place while this process prepared")

    def _is_over_by_now(self, place: tuple[str, int]) -> bool:
        """Return whether training has gone on from this loop to a later one while this process prepared.

        This loop is passed like others then.
        """
        known = self._set_up
        newer = self._joining.newer_set_up()
        over = () if newer is None else newer.passed[len(known.passed) :]
        if newer is None or not over or (over[0].site, over[0].entry) != place:
            return False
        assert self._engine.records.answers is not None
        self._engine.records.answers += newer.collectives[len(known.collectives) :]
        self._goals.extend(_goal(passed, 0) for passed in over)
        self._set_up = newer
        return True

    @staticmethod
    def _first(goal: Goal) -> tuple[str, int]:
        link = goal.journal.links[goal.depth]
        return link.site, link.entry

    def made(self, activation: Activation, depth: int) -> None:
        link = self._link(activation, depth)
        if link is None:
            return
        draws = self._engine.draws
        if link.draw is not None:
            activation.entered = True
            self._own[id(activation)] = activation.iterator
            activation.iterator = iter([None])
        elif link.iterator is not None:
            activation.iterator = iter([link.item])
        else:
            passed = data_loader.passed_through(activation.iterator)
            if not data_loader.lets_all_through(activation.iterator):
                draws.expected = deque(None if e is None else (e[0], False) for e in draws.expected)
            for iterator in activation.loaders:
                if iterator is not None and id(iterator) not in passed:
                    draws.tracks[iterator].skip = 0
        draws.watch_cycles(activation.iterator)

    def _link(self, activation: Activation, depth: int) -> payload.LinkRecord | None:
        if depth >= len(self._chain) or self._chain[depth] is not activation:
            return None
        return self._goals[0].journal.links[depth]

    def at_head(self, activation: Activation, depth: int) -> None:
        engine = self._engine
        if activation.heads == 1:
            activation.first_mark = len(engine.records.log)
        link = self._link(activation, depth)
        if link is None or activation.heads != 1:
            return
        goal = self._goals[0]
        if link.draw is not None:
            engine.records.skip(link.first_draw)
        if goal.last:
            self._joining.check_answered()
        if link.draw is not None:
            activation.iterator = self._own.pop(id(activation))
        elif link.iterator is not None:
            activation.iterator = link.iterator
        elif activation.iterator is not None:
            self._lead(activation, link)
        activation.heads = link.heads
        activation.rng = link.entry_rng
        activation.entry = link.entry
        if depth < len(goal.journal.links) - 1:
            self._pass_head(goal, activation, depth, link)
        elif goal.last:
            self._joining.enter(goal, activation)
        else:
            self._begin_last_iteration(goal, activation)

    def _lead(self, activation: Activation, link: payload.LinkRecord) -> None:
        self._engine.tracker.drawing = activation
        try:
            for _ in range(link.heads - 1):
                activation.item = next(activation.iterator, _EXHAUSTED)
                if activation.item is _EXHAUSTED:
                    raise StateMismatchError(f"the loop at {link.site} ends before the recorded iteration {link.heads}")
        finally:
            self._engine.tracker.drawing = None

    def _pass_head(self, goal: Goal, activation: Activation, depth: int, link: payload.LinkRecord) -> None:
        state: payload.HeadState | None = payload.load(link.head, payload.HeadState) if link.head else None
        if state is not None:  # otherwise it is the first head, where everything is as set-up has left it
            self._joining.put(goal, RecordedPlace(state.nodes, state.loaders, is_passed=True), activation.frame)
            activation.data_mark = state.data_mark
            self._engine.saves.pass_to(state.saves)
            self._engine.wrapped.built = state.built
            process_group.name_from(state.groups)
        activation.head = link.head
        below = goal.journal.links[depth + 1]
        if goal.last:
            self._engine.records.log += below.prologue
            self._engine.records.answer_with(below.prologue)
        self._goals.extendleft(_goal(passed, depth + 1) for passed in reversed(below.passed))
        if state is not None:
            rng.restore(state.rng)

    def _begin_last_iteration(self, goal: Goal, activation: Activation) -> None:
        self._joining.put(goal, RecordedPlace.at_boundary(goal.journal), activation.frame)
        self._engine.saves.pass_to(goal.journal.saves[0])
        self._engine.draws.expected.clear()
        rng.restore(goal.journal.rng)
        self._stepping = activation
        self._early = 0
        self._over = list(zip(self._chain[goal.depth :], goal.heads))
        self._engine.updates.whole.communicating |= {*goal.journal.communicating}
        self._heads = abs(goal.gate.heads) if goal.gate is not None else activation.heads
        if goal.gate is None:
            self._is_past(goal)

    def _is_past(self, goal: Goal) -> None:
        self._goals.popleft()
        del self._chain[goal.depth :]
        if goal.depth == 0:
            self._engine.trees.made_hooks.loop_is_over()

    # What the optimizer tells.

    def before_gate(self) -> bool:
        """Return whether it is in the last iteration of a loop that is over, in front of that loop's gate."""
        return self._stepping is not None and self._stepping in self._chain

    def at_step(self, frame: FrameType) -> None:
        """Put the lost rank's state at the gate of a loop that is over.

        Raises StateMismatchError for a step that the lost rank did not make.
        """
        goal = self._goals[0] if self._goals else None
        running = self._engine.tracker.around_step(frame)
        if goal is not None and goal.gate is not None and len(self._chain) == len(goal.journal.links):
            loop = self._chain[-1]
            if (loop in running) is (goal.gate.heads < 0) or loop.heads > self._heads:
                raise StateMismatchError("a training loop that is over went on otherwise here than in the lost rank")
            if self._early < goal.journal.turns.get(loop.site, (0, 0))[0]:
                self._early += 1
                return
            if loop.heads != self._heads:
                raise StateMismatchError("a training loop that is over went on otherwise here than in the lost rank")
            self._joining.put(goal, RecordedPlace(goal.gate.on(goal.journal), is_passed=True), frame)
            rng.restore(goal.gate.rng)
            self._is_past(goal)
        elif self._stepping is not None and self._stepping in running and self._stepping.heads != self._heads:
            site = SITES[self._stepping.site]
            raise StateMismatchError(
                f"the training loop at {site.file}:{site.line} did not end here where it had ended"
            )
        elif running and running[-1].heads > 1 and running[-1] is not self._stepping:
            site = SITES[running[-1].site]
            raise StateMismatchError(f"the loop at {site.file}:{site.line} trains here, and did not in the lost rank")

    def ended(self, activation: Activation) -> None:
        pass

    def caught(self, error: BaseException, activation: Activation) -> bool:
        return False

    def may_be_of_garbage(self) -> bool:
        return False

    def before_draw(self, iterator: Any) -> Any:
        return None

    def trained_in_draw(self) -> None:
        pass

    def drawn(self, iterator: Any, default: tuple[Any, ...]) -> Any:
        loop = self._engine.tracker.drawing
        if loop is None or loop.iterator is not iterator or not self._has_ended(loop):
            return next(iterator, *default)
        before = rng.capture()
        next(iterator)  # a loop that has ended by itself ends here, too, with all that its iterator does at its end
        rng.restore(before)
        raise StopIteration

    def _has_ended(self, loop: Activation) -> bool:
        """Return whether the lost rank left the loop here, by its end or by a `break` that this process has not come to."""
        return any(over is loop and loop.heads >= heads for over, heads in self._over)
