"""What scripts do to the state of their optimizers beside the update: it is cleared, scaled, or moved to another parameter.

A step may do so before its update (momentum is dropped every so many steps, a checkpoint is loaded). Where the step is done again,
bindings are put back as they were at its head. What is written in place is copied at each head from then on (see `early_writes`);
the first time the rank does not go back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.raw_memory.list_pointers import pointers
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.values.base_types import fields
from torchrelay.shim.step.updates.late_writes import REBOUND
from torchrelay.shim.tensors.tensor_versions import version_of, versions_of, writes_between

_NAMED = 5
_Values = dict[Any, Any]


@dataclass(frozen=True)
class _Bindings:
    """The tensors that an optimizer's state leads to. `flat`: all values, in order; `tensors`: those that are tensors."""

    states: dict[Any, Any]
    entries: dict[Any, Any]
    """What that held: values by parameter, and whatever else some optimizers keep there."""
    flat: list[Any]
    kept: list[tuple[Any, _Values, _Values]]
    """Of each parameter: its values, and what these were."""
    places: dict[int, int]
    """By id of a parameter: its place in the optimizer."""
    tensors: list[torch.Tensor]

    def are_those_of(self, states: dict[Any, Any], flat: list[Any]) -> bool:
        if self.states is not states:
            return False
        if pointers(flat) != pointers(self.flat) or pointers([*states]) != pointers([*self.entries]):
            return False
        return pointers([*states.values()]) == pointers([*self.entries.values()])

    def paths(self, number: int) -> Iterator[str]:
        """Yield the path of each tensor, as in the catalogue. `number`: the optimizer's."""
        for parameter, _, values in self.kept:
            place = self.places.get(id(parameter), -1)
            for key, value in values.items():
                if isinstance(value, torch.Tensor):
                    yield f"optimizer{number}.{place}.{key}"


@dataclass(frozen=True)
class _Content:
    """One optimizer's state at one moment. `versions`: of its tensors."""

    number: int
    optimizer: torch.optim.Optimizer
    bindings: _Bindings
    versions: list[int]

    def written(self) -> list[tuple[str, torch.Tensor]]:
        """Return path and tensor of each tensor that was written to since."""
        tensors = self.bindings.tensors
        if versions_of(tensors) == self.versions:
            return []
        paths = zip(self.bindings.paths(self.number), tensors, self.versions)
        return [(path, tensor) for path, tensor, version in paths if version_of(tensor) != version]


class OptimizerStates:
    def __init__(self) -> None:
        self._head: list[_Content] = []
        """The states at the step's head."""
        self._updated: list[_Content] = []
        """The states behind the step's update."""

    def drop(self) -> None:
        """Forget the states: no rank goes back any more."""
        self._head = []
        self._updated = []

    def at_boundary(self, state: HostState) -> None:
        self._head = _take(state, self._updated)

    def note(self, state: HostState) -> None:
        """Note the states right after an optimizer step. `state`: of the boundary which the step started at."""
        self._updated = _take(state, self._head)

    def at(self, paths: Collection[str]) -> Iterator[tuple[str, torch.Tensor, int]]:
        """Return those of the tensors at the head that are among `paths`: path, tensor, and how often it was written to."""
        for content in self._head:
            for path, tensor, version in zip(
                content.bindings.paths(content.number), content.bindings.tensors, content.versions
            ):
                if path in paths:
                    yield path, tensor, version

    def written(self) -> list[tuple[str, torch.Tensor]]:
        """Return path and tensor of each tensor that was written to in place since the head."""
        return [found for content in self._head for found in content.written()]

    def put_back(self, copied_at: Mapping[int, int]) -> None:
        """Put the states back as they were at the head.

        `copied_at`: tensors whose content was put back, by id: how often they had been written to when it was copied. Raises
        StateMismatchError where the step has written to others in place.
        """
        written: list[str] = []
        for content in self._head:
            bindings = content.bindings
            optimizer = content.optimizer
            own = fields(optimizer)
            if own is not None and "state" in own and own["state"] is not bindings.states:
                own["state"] = bindings.states
            if not bindings.are_those_of(bindings.states, _flat(bindings.states)):
                bindings.states.clear()
                bindings.states.update(bindings.entries)
                for _, values, then in bindings.kept:
                    values.clear()
                    values.update(then)
            for at, (tensor, version) in enumerate(zip(bindings.tensors, content.versions)):
                if copied_at.get(id(tensor)) == version:
                    content.versions[at] = version_of(tensor)
            written += [path for path, _ in content.written()]
        if written:
            raise StateMismatchError(
                "the step has written to the state of an optimizer before its update, so it cannot be done again: "
                f"{', '.join(written[:_NAMED])}"
            )

    def late(self, state: HostState, *, at_head: bool) -> dict[str, int]:
        """Return what was written since the last optimizer step: how often, by path in the catalogue.

        `at_head`: until the head of the present step, and else until now.
        """
        found: dict[str, int] = {}
        later = {id(c.optimizer): c for c in (self._head if at_head else _take(state, self._updated))}
        for content in self._updated:
            now = later.get(id(content.optimizer))
            if now is None:
                found.update(dict.fromkeys(content.bindings.paths(content.number), REBOUND))
            elif now.bindings is content.bindings and now.versions == content.versions:
                continue
            else:
                versions = {id(t): version for t, version in zip(now.bindings.tensors, now.versions)}
                pairs = zip(content.bindings.tensors, content.versions)
                for path, (tensor, version) in zip(content.bindings.paths(content.number), pairs):
                    last = versions.get(id(tensor))
                    if last != version:
                        found[path] = REBOUND if last is None else writes_between(version, last, REBOUND)
        return found


def _take(state: HostState, before: Sequence[_Content]) -> list[_Content]:
    known = {id(content.optimizer): content.bindings for content in before}
    found: list[_Content] = []
    seen: set[int] = set()
    for number, (_, optimizer) in enumerate(state.optimizers):
        states = getattr(optimizer, "state", None)  # some that stand for another one have none
        if id(states) in seen or not isinstance(states, dict):
            continue  # one that stands for another one shows that one's
        seen.add(id(states))
        flat = _flat(states)
        bindings = known.get(id(optimizer))
        if bindings is None or not bindings.are_those_of(states, flat):
            bindings = _bindings(optimizer, states, flat)
        found.append(_Content(number, optimizer, bindings, versions_of(bindings.tensors)))
    return found


def _flat(states: dict[Any, Any]) -> list[Any]:
    try:
        return [*chain.from_iterable(map(dict.values, states.values()))]
    except TypeError:  # some optimizers keep other things there, too
        return [value for values in states.values() if isinstance(values, dict) for value in values.values()]


def _bindings(optimizer: torch.optim.Optimizer, states: dict[Any, Any], flat: list[Any]) -> _Bindings:
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return _Bindings(
        states,
        dict(states),
        flat,
        [(parameter, values, dict(values)) for parameter, values in states.items() if isinstance(values, dict)],
        {id(parameter): place for place, parameter in enumerate(parameters)},
        [value for value in flat if isinstance(value, torch.Tensor)],
    )
