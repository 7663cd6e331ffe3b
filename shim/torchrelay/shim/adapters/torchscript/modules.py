"""Tell what a module of TorchScript consists of: it is kept in C++, and its Python object looks it up there.

Leans on `RecursiveScriptModule._c`, `ScriptModule._actual_script_module`, `OrderedModuleDict._python_modules`, and on
`ConcreteModuleType` knowing the names of a type's attributes and which of them are parameters. Seen on torch 2.13.0 and 2.14.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch.jit._script import RecursiveScriptModule

from torchrelay.protocol.errors import StateMismatchError

_OWN = frozenset(
    {
        "_initializing",
        "_c",
        "_concrete_type",
        "_actual_script_module",
        "_name",
        "_is_full_backward_hook",
        "_python_modules",
    }
)
_C: Any = torch._C
"""torch's C++ module. What is used of it is not in its stubs."""
_COMPILED = (_C.ScriptMethod, property)
"""Methods and properties, which the Python object keeps once it was asked for them."""
_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)


def inner(module: torch.nn.Module) -> RecursiveScriptModule | None:
    """Return the Python object that has the C++ one of a module; None for a module that is no TorchScript."""
    if not isinstance(module, torch.jit.ScriptModule):
        return None
    found = module.__dict__.get("_actual_script_module", module)
    return found if isinstance(found, RecursiveScriptModule) else None


def tree(part: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the paths and the C++ objects of a module and of all below it."""
    yield path, part
    for name, child in _C.ModuleDict(part).items():
        yield from tree(child, f"{path}.{name}" if path else name)


def attributes(part: Any) -> dict[str, bool]:
    """Return the names of what a C++ object holds beside modules, each with whether it is a parameter."""
    kinds = _C.ConcreteModuleType.from_jit_type(part._type()).get_attributes()
    return {name: is_parameter for name, (_, is_parameter) in kinds.items()}


class _Space(MutableMapping[str, Any]):
    """A space whose names are compiled. Setting another name, or deleting one, raises StateMismatchError."""

    def __init__(self, part: Any, names: tuple[str, ...]) -> None:
        self._part = part
        self._names = names
        self._known = frozenset(names)

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            raise KeyError(name)
        return self._part.getattr(name)

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self._known:
            raise StateMismatchError(f"a module of TorchScript cannot be given {name}")
        self._part.setattr(name, value)

    def __delitem__(self, name: str) -> None:
        raise StateMismatchError(f"{name} of a module of TorchScript cannot be taken away")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class ScriptFields(_Space):
    """The attributes that are neither parameters, buffers nor modules, and what was put into the Python object later.

    C++ makes new objects each time it is asked: as long as they are equal, the first one stands for all of them. Lists and dicts
    are given as tuples that begin with their kind, since nothing written to them would arrive.
    """

    def __init__(self, module: RecursiveScriptModule, machinery: frozenset[str]) -> None:
        buffers = {name for name, _ in _C.BufferDict(module._c).items()}
        names = [n for n, is_parameter in attributes(module._c).items() if not is_parameter and n not in buffers | _OWN]
        super().__init__(module._c, tuple(sorted(names)))
        self._python = module.__dict__
        self._machinery = machinery
        self._latest: dict[str, Any] = {}

    def _later(self) -> list[str]:
        others = self._python.keys() - self._machinery - _OWN
        return sorted(name for name in others if not isinstance(self._python[name], _COMPILED))

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            return self._python[name]
        value = _frozen(self._part.getattr(name))
        if not _same(value, self._latest.get(name, self)):
            self._latest[name] = value
        return self._latest[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self._known:
            self._part.setattr(name, _thawed(value))
        else:
            self._python[name] = value

    def __delitem__(self, name: str) -> None:
        if name in self._known:
            super().__delitem__(name)
        del self._python[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*self._names, *self._later()))

    def __len__(self) -> int:
        return len(self._names) + len(self._later())


def _frozen(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return "list" if isinstance(value, list) else "tuple", *map(_frozen, value)
    if isinstance(value, dict):
        return "dict", *map(_frozen, value.items())
    return value


def _thawed(value: Any) -> Any:
    if type(value) is not tuple:
        return value
    kind, *parts = value
    made = [*map(_thawed, parts)]
    return made if kind == "list" else dict(made) if kind == "dict" else tuple(made)


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    cls = type(one)
    if cls is not type(other):
        return False
    if cls is tuple:
        return len(one) == len(other) and all(map(_same, one, other))
    return cls in _PLAIN and bool(one == other)


def buffers_of(module: RecursiveScriptModule) -> MutableMapping[str, Any]:
    return _Space(module._c, tuple(name for name, _ in _C.BufferDict(module._c).items()))


def parameters_of(module: RecursiveScriptModule) -> MutableMapping[str, Any]:
    return _Space(module._c, tuple(name for name, _ in _C.ParameterDict(module._c).items()))


class ScriptParts(_Space):
    """The modules below a module: their Python objects, which C++ does not know."""

    def __init__(self, module: RecursiveScriptModule) -> None:
        self._put: Any = module._modules
        self._objects: Mapping[str, Any] = self._put._python_modules
        super().__init__(module._c, tuple(self._objects))

    def __getitem__(self, name: str) -> Any:
        return self._objects[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self._known or not isinstance(value, torch.jit.ScriptModule):
            raise StateMismatchError(f"a module of TorchScript cannot be given {name}")
        self._put[name] = value
