"""The update that a joiner makes in the lost rank's place, with gradients of its own alone and tensors that have not come yet.

What it computes from these is wrong. Tensors of models and optimizers come from a donor anyway. Of all else that it has changed,
what depends on them is taken from the donor, if both ranks had the same before and updates change it each time. What does not
depend on them is right: it is left as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters import dynamo
from torchrelay.shim.capture.models import device
from torchrelay.shim.capture.records import effects
from torchrelay.shim.capture.records.effects import Effect, HeldValue, Way
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.values.alike import alike
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.tensors.taint import Watch


class _UpdateWatch(Watch):
    """Notes that a number was read which depends on a source, and lets it be read."""

    def __init__(self, sources: Mapping[str, torch.Tensor]) -> None:
        super().__init__(sources, sources.keys())
        self.has_read = False

    def _check(self, name: str, bits: int) -> None:
        self.has_read |= bool(self._what(bits))


class OwnUpdate:
    """From the gate to the end of the step's last update. `at_gate`: the state there, which is the lost rank's."""

    def __init__(self, at_gate: HostState) -> None:
        self._at_gate = at_gate
        self._watch: _UpdateWatch | None = None
        if not dynamo.compilations():  # compiled code is compiled once more where something watches it
            self._watch = _UpdateWatch(_not_known(at_gate))
            self._watch.__enter__()

    def done(self) -> None:
        if self._watch is not None:
            self._watch.__exit__(None, None, None)
        if dynamo.compilations():
            self._watch = None  # what was compiled meanwhile was not watched

    def put_right(
        self,
        now: HostState,
        given: Mapping[Way, Effect] | None,
        changed_before: Collection[tuple[Way, bool]],
        received: Collection[str] = frozenset(),
        *,
        is_own: bool = False,
    ) -> None:
        """`now`: the state behind the update. `given`: what the donor's update has changed; None where the donor has not looked.
        `changed_before`: what earlier updates of the lost rank have changed, with whether that was more than a first value: ranks
        that have the same in one that others have changed, have it by more than initialisation. `received`: paths of the tensors
        that have come. `is_own`: `given` is of the lost rank's own update.

        Raises StateMismatchError where that does not tell what the lost rank's update has left.
        """
        before = effects.leaves(self._at_gate, range(len(self._at_gate.nodes)))
        own = effects.effects(self._at_gate, now)
        places = effects.leaves(now, range(len(now.nodes)))
        for way in dict.fromkeys((*own, *(given or ()))):
            mine = own.get(way)
            state = now
            place = places.get(way)
            if place is None:
                state, place = _place_in(now, self._at_gate, before.get(way))
            if place is None:
                if mine is not None and self._may_have_read():
                    raise _unknown(way)  # with what held it
                continue  # the donor's alone
            if effects.tensor_path(state, place) in received:
                continue  # the donor has a tensor there
            there = given.get(way) if given is not None else None
            if not self._depends(state, place, mine):
                continue
            if there is not None and mine is not None and alike(mine.after, there.after):
                continue
            was = (before[way].value,) if way in before else ()
            had_one = there is not None and bool(there.before)
            is_repeated = there is not None and (way, had_one) in changed_before and alike(was, there.before)
            if there is not None and (is_own or is_repeated) and there.after:
                effects.put(state, place, there.after[0])
                continue
            is_missed = there is not None and mine is None and alike(was, there.before)
            if is_missed or (mine is not None and not (given is None and effects.is_counter(mine))):
                raise _unknown(way)

    def _may_have_read(self) -> bool:
        return self._watch is None or self._watch.has_read

    def _depends(self, state: HostState, leaf: HeldValue, effect: Effect | None) -> bool:
        """Whether what the update has left there, or that it has left nothing, may come of what is not known."""
        if self._watch is None or self._watch.has_read:
            return True
        tensor = effects.tensor_of(state, leaf)
        return tensor is not None and effect is not None and bool(self._watch.computed_from(tensor))


def _unknown(way: Way) -> StateMismatchError:
    return StateMismatchError(
        f"the update has left in {way[1]} what it has computed from gradients, and no other rank has the same"
    )


def _place_in(now: HostState, then: HostState, leaf: HeldValue | None) -> tuple[HostState, HeldValue | None]:
    """Where a value stood that is no longer there, and in which of the states; None where nobody has what held it.

    An optimizer's state is left out of a walk that finds nothing but tensors there, and is there all the same.
    """
    if leaf is None:
        return now, None
    if then.nodes[leaf.number].kind is Kind.OPTIMIZER_STATE:
        return then, leaf
    number = now.index.get(id(then.nodes[leaf.number].obj))
    return now, None if number is None else leaf._replace(number=number)


def _not_known(state: HostState) -> dict[str, torch.Tensor]:
    """Gradients and tensors that a donor gives. Counts of steps, which optimizers read for themselves, do not lead to others."""
    found: dict[str, Any] = {**device.gradients(state), **device.whole(state, state.roots)}
    return {path: tensor for path, tensor in found.items() if not path.startswith("optimizer") or tensor.numel() > 1}
