"""Find where a module keeps what it has: in dictionaries of its own, or, as TorchScript does, elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch

from torchrelay.shim.adapters.torchscript import modules as scripted

BUFFERS = "_buffers"
PARAMETERS = "_parameters"
STANDARD = frozenset(vars(torch.nn.Module())) | {BUFFERS, PARAMETERS, "_modules", "training"}
"""What each module has in its dictionary."""
Space = MutableMapping[str, Any]


def is_scripted(module: torch.nn.Module) -> bool:
    """Return whether nothing of the module lies in a dictionary of Python."""
    return scripted.inner(module) is not None


def fields(module: torch.nn.Module) -> Space:
    """Return the module's own attributes, `training` among them, with what else lies beside them."""
    inner = scripted.inner(module)
    return module.__dict__ if inner is None else scripted.ScriptFields(inner, STANDARD)


def tensors(module: torch.nn.Module, where: str) -> Space:
    """Return the tensors that are bound in the module: `where` is BUFFERS or PARAMETERS."""
    inner = scripted.inner(module)
    if inner is None:
        space: Space = module.__dict__[where]
        return space
    return scripted.buffers_of(inner) if where == BUFFERS else scripted.parameters_of(inner)


def parts(module: torch.nn.Module) -> Space:
    """Return the modules that are bound in the module."""
    inner = scripted.inner(module)
    return module._modules if inner is None else scripted.ScriptParts(inner)


def module_at(root: torch.nn.Module, path: str) -> torch.nn.Module:
    """Return the module at this path. Raises AttributeError where there is none."""
    module: Any = root
    for name in path.split(".") if path else ():
        module = parts(module).get(name)
        if module is None:
            raise AttributeError(f"the model has no module {path}")
    return module  # type: ignore[no-any-return]


def put_all(space: Space, then: Mapping[str, Any]) -> None:
    """Let the space hold these items, in this order, and nothing else. Does nothing where it does already.

    Raises StateMismatchError where that cannot be.
    """
    if [*space] == [*then] and all(space[name] is value for name, value in then.items()):
        return
    if isinstance(space, dict):
        space.clear()
    for name in space.keys() - then.keys():
        del space[name]
    space.update(then)
