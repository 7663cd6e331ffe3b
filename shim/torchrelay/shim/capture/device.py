"""Device state: the tensors that make up the model, its optimizers, and whatever else the loop keeps, by path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from torchrelay.shim.capture import small
from torchrelay.shim.capture.host_state import HostState


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor that is spread over ranks; the tensor itself if it is not."""
    part = getattr(tensor, "_local_tensor", None)
    return part if isinstance(part, torch.Tensor) else tensor


def numbered(roots: Sequence[torch.nn.Module]) -> Iterator[tuple[int, torch.nn.Module]]:
    """Only those that have tensors count: ranks may differ in how many metrics and the like they have made."""
    place = 0
    for root in roots:
        if next(root.parameters(), None) is not None or any(not small.is_small(b) for b in root.buffers()):
            yield place, root
            place += 1


def catalogue(state: HostState, roots: Sequence[torch.nn.Module]) -> dict[str, torch.Tensor]:
    """Path -> this rank's part of each tensor, for reading and writing its memory."""
    return {
        path: local(tensor.data if isinstance(tensor, torch.nn.Parameter) else tensor)
        for path, tensor in whole(state, roots).items()
    }


def whole(state: HostState, roots: Sequence[torch.nn.Module]) -> dict[str, torch.Tensor]:
    """Path -> tensor: parameters, buffers too large for the journal, optimizer state, other large tensors.

    Paths are made of the order of modules and optimizers in the walk and of parameter names, so they agree between ranks.
    In the order in which optimizers keep their state, for a joiner to make it in the same.
    """
    found: dict[str, torch.Tensor] = {}
    for number, root in numbered(roots):
        for name, parameter in root.named_parameters():
            found[f"module{number}.{name}"] = parameter
        for name, buffer in root.named_buffers():
            if not small.is_small(buffer):
                found[f"module{number}.{name}"] = buffer
    in_modules = set(map(id, found.values()))
    for number, (_, optimizer) in enumerate(state.optimizers):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for place, parameter in enumerate(parameters):
            if id(parameter) not in in_modules:
                found[f"parameter{number}.{place}"] = parameter
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    found[f"optimizer{number}.{place}.{key}"] = value
    for path, tensor in state.large.items():
        found[f"value.{path}"] = tensor
    return found


def gradients(state: HostState) -> dict[str, torch.Tensor]:
    """Path -> gradient, of the parameters that optimizers update."""
    return {
        f"gradient{number}.{place}": parameter.grad
        for number, (_, optimizer) in enumerate(state.optimizers)
        for place, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"])
        if parameter.grad is not None
    }


def ddp_paths(roots: Sequence[torch.nn.Module], wrapped: Sequence[torch.nn.Module], state: HostState) -> list[str]:
    """Catalogue paths of what a data parallel wrapper keeps equal on all ranks: its parameters and their optimizer state."""
    parameters = {id(p) for module in wrapped for p in module.parameters()}
    names = [
        f"module{number}.{name}"
        for number, root in numbered(roots)
        for name, parameter in root.named_parameters()
        if id(parameter) in parameters
    ]
    for number, (_, optimizer) in enumerate(state.optimizers):
        for place, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
            if id(parameter) in parameters:
                names += [f"optimizer{number}.{place}.{key}" for key in optimizer.state.get(parameter, {})]
    return names
