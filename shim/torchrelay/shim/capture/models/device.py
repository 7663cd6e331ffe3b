"""Name the device state by path: the tensors of the model, its optimizers, and whatever else the loop keeps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch

from torchrelay.protocol.words.tensor_paths import OPTIMIZER
from torchrelay.shim.adapters.parallel import fsdp2
from torchrelay.shim.adapters.tensors.dtensor import is_spread, laid_out_alike, like, local
from torchrelay.shim.adapters.tensors.lazy_modules import is_lazy
from torchrelay.shim.adapters.tensors.parameter_gradients import gradients_of
from torchrelay.shim.adapters.tensors.tensor_classes import has_graph
from torchrelay.shim.capture.models.optimizer_entries import entries
from torchrelay.shim.capture.models.spaces import BUFFERS
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.values import small
from torchrelay.shim.capture.values.kinds import Kind

VALUE = "value."
"""Paths of tensors that belong to no module and no optimizer begin with this."""

MODEL = "module"
"""Paths of what models hold begin with this, and the model's number."""

NUMBERED = (MODEL, OPTIMIZER, "parameter")
"""What paths begin with whose numbers are made of an order."""

GRADIENT = "gradient."
"""What paths of gradients begin with, in front of their parameter's."""

UPDATED = "updated."
"""Paths of what a tensor or a gradient held right after the latest update begin with this: the donor has gone on since."""

EFFECTS = "effects of the update"
"""Path of what the donor's latest update has left beside tensors, as bytes."""

BEFORE = "before."
"""Paths of tensors that the boundary before had begin with this, where the donor has others now."""

NAMES = "names at the boundary before"
"""Path of what the donor's tensors were called there, as bytes: see `names_before`."""


def numbered(roots: Sequence[torch.nn.Module]) -> Iterator[tuple[int, torch.nn.Module]]:
    """Yield the roots that have parameters or large buffers which no earlier one has, numbered.

    Others do not count: ranks may differ in how many metrics they have.
    """
    place = 0
    seen: set[int] = set()
    for root in roots:
        own = {id(tensor) for tensor in (*root.parameters(), *root.buffers()) if not is_carried_otherwise(tensor)}
        if not own <= seen:
            yield place, root
            place += 1
        seen |= own


def is_carried_otherwise(tensor: torch.Tensor) -> bool:
    """Return whether no donor need give the tensor: it is a small buffer, or has no content yet."""
    return is_lazy(tensor) or (not isinstance(tensor, torch.nn.Parameter) and small.is_small(tensor))


def catalogue(state: HostState, roots: Sequence[torch.nn.Module], *, as_taken: bool = False) -> dict[str, torch.Tensor]:
    """Return path -> this rank's part of each tensor, for reading and writing its memory. `as_taken`: as for `whole`."""
    return parts(whole(state, roots, as_taken=as_taken))


def under_other_names(state: HostState, paths: Collection[str]) -> dict[str, tuple[str, torch.Tensor]]:
    """Return path -> the name that `whole` has for it here and this rank's part, for tensors that are also held where `paths` say.

    A variable that a step has bound is met before the dict that holds the same tensor, and is no more at the next head.
    """
    found: dict[str, tuple[str, torch.Tensor]] = {}
    if not paths:
        return found
    names = {id(tensor): path for path, tensor in state.large.items()}
    for number, node in enumerate(state.nodes):
        for key, value in node.edges:
            if id(value) in names and (path := f"{VALUE}{state.path(number, key)}") in paths:
                found[path] = f"{VALUE}{names[id(value)]}", parts({path: value})[path]
    return found


def parts(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return this rank's part of each tensor, for reading and writing its memory."""
    return {
        path: local(tensor).detach() if isinstance(tensor, torch.nn.Parameter) else local(tensor)
        for path, tensor in tensors.items()
    }


def _bound(
    state: HostState, root: torch.nn.Module, *, as_taken: bool
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the parameters and the buffers of a tree, by name."""
    parameters: dict[str, torch.Tensor] = dict(root.named_parameters())
    buffers = dict(root.named_buffers())
    number = state.index.get(id(root)) if as_taken else None
    if number is None:
        return parameters, buffers
    seen: set[int] = set()
    for (owner, where, key), tensor in state.nodes[number].content.named().items():
        own = buffers if where == BUFFERS else parameters
        name = f"{owner}.{key}" if owner else key
        if tensor is None or id(tensor) in seen:
            own.pop(name, None)
        else:
            seen.add(id(tensor))
            own[name] = tensor
    return parameters, buffers


def _owned(state: HostState, optimizer: torch.optim.Optimizer, *, as_taken: bool) -> list[torch.Tensor]:
    """Return the parameters of an optimizer, in order."""
    number = state.index.get(id(optimizer)) if as_taken else None
    groups = dict(state.nodes[number].edges).get("param_groups") if number is not None else None
    listed = state.index.get(id(groups))
    numbers = [state.index.get(id(group)) for group in state.nodes[listed].content] if listed is not None else []
    nodes = [state.nodes[n] for n in numbers if n is not None and state.nodes[n].kind is Kind.PARAM_GROUP]
    if not nodes or len(nodes) != len(numbers):  # it has no list of its own: it stands for another one
        return [p for group in optimizer.param_groups for p in group["params"]]
    return [p for node in nodes for p in node.seen]


def whole(state: HostState, roots: Sequence[torch.nn.Module], *, as_taken: bool = False) -> dict[str, torch.Tensor]:
    """Return path -> tensor: parameters, buffers too large for the journal, optimizer state, other large tensors.

    `as_taken`: the tensors that modules and optimizers had when `state` was taken, though the step may have given them others.

    Paths are made of the order of models and optimizers in the walk and of parameter names, so they agree between ranks. What
    wrappers for data parallel training wrap comes first, and a tensor has the name that it has in the first model that has it: an
    average that one rank alone keeps around its model changes no name. The paths are in the order in which optimizers keep their
    state, for a joiner to make it in the same.
    """
    found: dict[str, torch.Tensor] = {}
    in_modules: set[int] = set()
    for number, root in numbered(roots):
        sharded = fsdp2.sharded_parameters(root.modules())
        parameters, buffers = _bound(state, root, as_taken=as_taken)
        of_root = {name: sharded.get(id(parameter), parameter) for name, parameter in parameters.items()}
        of_root |= {name: buffer for name, buffer in buffers.items() if not is_carried_otherwise(buffer)}
        found |= {f"{MODEL}{number}.{name}": t for name, t in of_root.items() if id(t) not in in_modules}
        in_modules.update(map(id, of_root.values()))
    for number, (_, optimizer) in enumerate(state.optimizers):
        own = _owned(state, optimizer, as_taken=as_taken)
        for place, parameter in enumerate(own):
            if id(parameter) not in in_modules:
                found[f"parameter{number}.{place}"] = parameter
        found |= _state_of(number, optimizer, own)
    for path, tensor in state.large.items():
        found[f"{VALUE}{path}"] = tensor
    return {path: tensor for path, tensor in found.items() if not (tensor.is_meta or is_lazy(tensor))}


def recorded_buffers(state: HostState) -> dict[str, torch.Tensor]:
    """Return path -> a copy of what a small buffer held when `state` was taken, for those that an optimizer holds as well.

    Each rank puts back its small buffers by value. One in an optimizer's groups is in the catalogue, too, and the step may have
    written to it since.
    """
    values: dict[int, small.TensorValue] = {}
    for root in state.roots:
        content = state.nodes[state.index[id(root)]].content
        for (owner, where, key), tensor in content.named().items():
            value = content.buffers.get(f"{owner}.{key}" if owner else key) if where == BUFFERS else None
            if value is not None:
                values[id(tensor)] = value
    found = whole(state, state.roots, as_taken=True) if values else {}
    return {path: small.build(values[id(t)]).detach() for path, t in found.items() if id(t) in values}


def names_before(before: Mapping[str, torch.Tensor], now: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the path before of each tensor of models and optimizers, by its path now; empty for one that was not there."""
    known = {id(tensor): path for path, tensor in before.items()}
    return {path: known.get(id(tensor), "") for path, tensor in now.items() if path.startswith(NUMBERED)}


def derived(tensors: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    """Return the paths of tensors that a forward has made, and that are neither parameters nor buffers nor optimizer state."""
    return tuple(path for path, tensor in tensors.items() if path.startswith(VALUE) and has_graph(tensor))


def optimizer_tensors(state: HostState) -> dict[str, torch.Tensor]:
    """Return path -> tensor of what optimizers keep now."""
    found: dict[str, torch.Tensor] = {}
    for number, (_, optimizer) in enumerate(state.optimizers):
        found |= _state_of(number, optimizer, _owned(state, optimizer, as_taken=False))
    return found


def _state_of(number: int, optimizer: torch.optim.Optimizer, own: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return path -> tensor of one optimizer's state. `own`: the optimizer's parameters, in order."""
    places = {id(parameter): place for place, parameter in enumerate(own)}
    return {
        f"{OPTIMIZER}{number}.{places[id(parameter)]}.{key}": value
        for parameter, values in optimizer.state.items()
        if id(parameter) in places and isinstance(values, dict)
        for key, value in values.items()
        if isinstance(value, torch.Tensor)
    }


def after_update(state: HostState) -> HostState:
    """Return the boundary's state as it is behind the update that follows: optimizers' histories have other tensors by then."""
    now = state.fork()
    for path, tensor in state.large.items():
        node = state.nodes[state.index[id(tensor)]]
        history = state.nodes[node.parent] if node.parent >= 0 else None
        if (
            history is None
            or history.kind is not Kind.LIST
            or state.nodes[history.parent].kind is not Kind.OPTIMIZER_STATE
        ):
            continue
        if (
            isinstance(node.key, int)
            and node.key < len(history.obj)
            and isinstance(history.obj[node.key], torch.Tensor)
        ):
            now.large[path] = history.obj[node.key]
    return now


def parameters(state: HostState) -> dict[str, torch.Tensor]:
    """Return path -> parameter of models and optimizers; this rank's shard of one that is gathered at the moment."""
    found: dict[str, torch.Tensor] = {}
    known: set[int] = set()
    for number, root in numbered(state.roots):
        sharded = fsdp2.sharded_parameters(root.modules())
        of_root = {name: sharded.get(id(parameter), parameter) for name, parameter in root.named_parameters()}
        found |= {f"{MODEL}{number}.{name}": p for name, p in of_root.items() if id(p) not in known}
        known.update(map(id, of_root.values()))
    for number, (_, optimizer) in enumerate(state.optimizers):
        own = (p for group in optimizer.param_groups for p in group["params"])
        found.update((f"parameter{number}.{place}", p) for place, p in enumerate(own) if id(p) not in known)
    return {path: parameter for path, parameter in found.items() if not (parameter.is_meta or is_lazy(parameter))}


def gradients(state: HostState) -> dict[str, torch.Tensor]:
    """Return path -> gradient, for the parameters that have one."""
    found = parameters(state)
    pairs = zip(found, gradients_of([*found.values()]))
    return {GRADIENT + path: gradient for path, gradient in pairs if gradient is not None}


def like_parameter(parameter: torch.Tensor, key: str, part: torch.Tensor) -> torch.Tensor:
    """Return optimizer state around `part`.

    It is spread over ranks if the parameter is and the state has its form (all but step counts).
    """
    if key == "step" or not is_spread(parameter) or part.shape != local(parameter).shape:
        return part
    return like(parameter, part)


def not_rebuilt(state: HostState) -> list[str]:
    """Return names of optimizer state that is spread over ranks otherwise than its parameter: a joiner could not make it."""
    return [
        f"{name}.{key}"
        for name, optimizer in state.optimizers
        for parameter, values in optimizer.state.items()
        if isinstance(values, dict)
        for key, value in values.items()
        if is_spread(value) and not (is_spread(parameter) and laid_out_alike(parameter, value))
    ]


def kept_paths(roots: Sequence[torch.nn.Module], state: HostState, kept: Mapping[int, str]) -> list[str]:
    """Return the catalogue paths of the parameters in `kept`, by id, and of their optimizer state, each with the word in `kept`."""
    names = []
    seen: set[int] = set()
    for number, root in numbered(roots):
        of_root = dict(root.named_parameters())
        own = {name: id(parameter) for name, parameter in of_root.items() if id(parameter) not in seen}
        names += [f"{MODEL}{number}.{name}{kept[key]}" for name, key in own.items() if key in kept]
        seen.update(own.values())
    for number, (_, optimizer) in enumerate(state.optimizers):
        for place, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
            if id(parameter) in kept:
                keys = entries(optimizer.state, parameter)
                names += [f"{OPTIMIZER}{number}.{place}.{key}{kept[id(parameter)]}" for key in keys]
    return names
