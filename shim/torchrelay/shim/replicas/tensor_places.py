"""Find the tensors of some paths at each head and behind each update, with a look at where they stood the last time.

All of a model is gone through again only where something else stands in one of these places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import is_
from typing import Any

import torch

from torchrelay.shim.capture.models import device
from torchrelay.shim.capture.models.optimizer_entries import entries
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.values import small

VALUE = "value."
_Place = tuple[Callable[[Any], Any], Any, Any]
"""The `get` of a dict, a key, and what it gives."""
_Content = tuple[Any, tuple[Any, ...]]
"""A list, or a view of a dict's values, and what is in it."""


class TensorPlaces:
    """`wanted`: the paths, as `device.whole` makes them, of the tensors to find; None: all there are."""

    def __init__(self, wanted: frozenset[str] | None) -> None:
        self._wanted = wanted
        self._marks: tuple[Any, ...] = ()
        """What the models and optimizers were that the places are of. They are held, so that no other has their identity."""
        self._places: list[_Place] = []
        self._contents: list[_Content] = []
        self._found: dict[str, torch.Tensor] = {}
        """The tensors of models and optimizers."""
        self.beside: dict[str, torch.Tensor] = {}
        """The other tensors of the models that have a wanted one."""
        self._has_values = wanted is None or any(path.startswith(VALUE) for path in wanted)

    def at_head(self, state: HostState) -> dict[str, torch.Tensor]:
        """Return path -> tensor at the head that `state` is of."""
        return self._in_place(state) | self._beside_models(state)

    def behind_update(self, state: HostState, walk: Callable[[], HostState]) -> dict[str, torch.Tensor]:
        """Return path -> tensor behind the update of the step that began at the head of `state`.

        `walk`: returns the state now. An update may bind other tensors anywhere, so those beside models are looked for anew.
        """
        found = self._in_place(state)
        if not self._has_values:
            return found
        now = walk()
        found = found | self._beside_models(now) | self._made_by_step(now)
        lacking = {name: tensor for name, tensor in state.large.items() if VALUE + name not in found}
        wanted = self._wanted
        return found | {
            VALUE + name: tensor
            for name, tensor in _in_their_holders(state, now, lacking)
            if wanted is None or VALUE + name in wanted
        }

    def _beside_models(self, state: HostState) -> dict[str, torch.Tensor]:
        wanted = self._wanted
        values = {VALUE + name: tensor for name, tensor in state.large.items() if not tensor.is_meta}
        return values if wanted is None else {path: tensor for path, tensor in values.items() if path in wanted}

    def _made_by_step(self, state: HostState) -> dict[str, torch.Tensor]:
        """Return those that are in the gate's journal by value: larger ones are, too, where the step has made them.

        A process that takes tensors behind the update has these as large ones, as at a head.
        """
        values = (self._wanted or frozenset()) - {VALUE + name for name in state.large}
        if not any(path.startswith(VALUE) for path in values):
            return {}
        made = {
            VALUE + state.path(node.parent, node.key): node.obj
            for node in state.nodes
            if isinstance(node.content, small.TensorValue)
        }
        return {path: tensor for path, tensor in made.items() if path in values}

    def _in_place(self, state: HostState) -> dict[str, torch.Tensor]:
        marks = (*(large for large, _ in state.tree_versions), *(o.state for _, o in state.optimizers))
        sizes = [len(o.state) for _, o in state.optimizers]
        same = len(marks) == len(self._marks) - 1 and all(a is b for a, b in zip(marks, self._marks))
        is_known = same and self._wanted is not None and self._marks[-1] == sizes
        if not (is_known and self._are_there()):
            self._look(state)
            self._marks = (*marks, sizes)
        return self._found

    def _are_there(self) -> bool:
        """Return whether the same things stand in all places."""
        return all(len(box) == len(held) and all(map(is_, box, held)) for box, held in self._contents) and all(
            get(key) is what for get, key, what in self._places
        )

    def _look(self, state: HostState) -> None:
        whole = device.whole(state, state.roots)
        there = {path: tensor for path, tensor in whole.items() if not path.startswith(VALUE)}
        wanted = self._wanted
        self._found = {path: tensor for path, tensor in there.items() if wanted is None or path in wanted}
        models = {path.partition(".")[0] for path in self._found if path.startswith("module")}
        others = (path for path in there if path not in self._found)
        self.beside = {path: there[path] for path in others if path.partition(".")[0] in models}
        self._contents = [(box, tuple(box)) for box in (*_of_models(state, models), *_owned(state))]
        self._places = [*_of_optimizers(state, {*self._found})]


def _in_their_holders(
    head: HostState, now: HostState, large: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and tensor of what stands where these stood at the head: functions under way lead there by other names."""
    for name, tensor in large.items():
        node = head.nodes[head.index[id(tensor)]]
        number = now.index.get(id(head.nodes[node.parent].obj))
        edges = () if number is None else now.nodes[number].edges
        there = next((value for key, value in edges if _are_one_key(key, node.key)), None)
        if isinstance(there, torch.Tensor) and not there.is_meta:
            yield name, there


def _are_one_key(key: Any, other: Any) -> bool:
    """Return whether these are one key, without asking a class of the script's."""
    return key is other or (type(key) is type(other) and type(key) in (str, int) and key == other)


def _of_models(state: HostState, models: set[str]) -> Iterator[Any]:
    """Yield views of what all modules of these models hold."""
    for number, root in device.numbered(state.roots):
        if f"module{number}" in models:
            for module in root.modules():
                yield from (box.values() for box in (module._modules, module._parameters, module._buffers) if box)


def _owned(state: HostState) -> Iterator[list[Any]]:
    """Yield the lists of groups, and of parameters, that optimizers have."""
    for _, optimizer in state.optimizers:
        yield optimizer.param_groups
        yield from (group["params"] for group in optimizer.param_groups)


def _of_optimizers(state: HostState, wanted: set[str]) -> Iterator[_Place]:
    """Yield the places of the optimizers' state that is wanted, and those of what leads there."""
    for number, (_, optimizer) in enumerate(state.optimizers):
        yield from ((group.get, "params", group["params"]) for group in optimizer.param_groups)
        parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
        for place, parameter in enumerate(parameters):
            values = entries(optimizer.state, parameter)
            keys = [key for key in values if f"optimizer{number}.{place}.{key}" in wanted]
            if keys:
                yield optimizer.state.get, parameter, values
                yield from ((values.get, key, values[key]) for key in keys)
