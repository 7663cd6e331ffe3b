"""Find what functions, classes and bound methods of the script hold.

That is variables of a function that has returned another one, mutable default arguments, attributes of functions and of classes,
the object that a method belongs to. Only the script's own code is looked into. Installed packages keep too much behind their
functions that is no state.
"""

from __future__ import annotations

import dis
import enum
import functools
import gc
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import BuiltinFunctionType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, NamedTuple

from torch.utils.hooks import RemovableHandle

from torchrelay.shim.adapters.cpython.csv_readers import CsvReader, lines_of
from torchrelay.shim.adapters.parallel import module_hooks
from torchrelay.shim.capture.values.array_windows import is_window
from torchrelay.shim.capture.values.base_types import dict_items, file_of, tuple_items
from torchrelay.shim.capture.values.base_types import fields as fields_of
from torchrelay.shim.capture.values.kinds import PLAIN, Kind, kind_of
from torchrelay.shim.capture.values.read_files import is_read
from torchrelay.shim.capture.values.small import is_small
from torchrelay.shim.script import sites

_NOT_FOREIGN = frozenset({"_io", "builtins", "collections", "functools", "random", "torch", "numpy"})
_WITHOUT_CLASS_STATE = (enum.Enum, tuple, BaseException)
_WRAPS = {
    MethodType: ("__self__", "__func__"),
    BuiltinFunctionType: ("__self__",),
    functools.partial: ("func", "args", "keywords"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
}
LINES = "lines"
"""Stands for what a reader of CSV draws from, which has no name there."""
_TORCHS_WRAPPER = "torch.nn.modules.module"
"""Where the class is that torch puts around hooks of `load_state_dict`."""
BEHIND = "mapping"
"""Stands for what a view that nobody can write to looks at."""
_MOST_ELEMENTS = 4096
_NAMED = frozenset({Kind.MODULE, Kind.DDP, Kind.OPTIMIZER})
WITHOUT_ORDER = " (one of several that only a set holds)"
"""How the name ends of what `split_by_order` has set apart, and nothing else leads to."""
_KNOWN_BY_HASH = frozenset({Kind.ATTRS, Kind.OPAQUE, Kind.UNKNOWN})
_MAY_BE_ALIAS = (FunctionType, BuiltinFunctionType, type)
_HOOKS = (*module_hooks.NAMES, "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
_TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class ElementOf(NamedTuple):
    """A key of a dict, or an element of a set or frozenset, that is an object: by its class, and as which one of that class.

    A dict has an order; in a set objects of one class have none that another process has as well. Any of those that nothing else
    leads to stands for any other there, since all that is state of each is put into it.
    """

    cls: str
    number: int


def is_users(file: Any) -> bool:
    return file in sites.INSTRUMENTED_FILES and file not in sites.PACKAGES


def is_users_class(cls: type) -> bool:
    """Return whether the script defines the class, and it can have state."""
    if issubclass(cls, _WITHOUT_CLASS_STATE):
        return False
    return is_users(file_of(sites.module_named(cls.__module__)))


def is_users_function(function: FunctionType) -> bool:
    return is_users(function.__code__.co_filename)


def parts(value: Any) -> Iterator[tuple[int | str | ElementOf, Any]]:  # noqa: C901 - one case for each kind of value
    """Yield what a value stands for that is looked through.

    It is a tuple, a bound method or the like, an array that looks into another one, or a package's wrapper around a function of the
    script.
    """
    cls = type(value)
    kind = kind_of(cls)
    if kind is Kind.TUPLE:
        yield from enumerate(tuple_items(value))
        if cls is not tuple and (own := fields_of(value)):
            yield "__dict__", own
    elif issubclass(cls, frozenset):
        yield from split_by_order(elements(frozenset.__iter__(value)))[0]
    elif kind is Kind.NDARRAY:
        yield "base", value.base
    elif cls is FunctionType:
        inner = getattr(value, "__wrapped__", None)
        if isinstance(inner, FunctionType):
            yield "__wrapped__", inner
    elif cls is CsvReader:
        yield LINES, lines_of(value)
    elif cls is MappingProxyType:
        if (inner := behind(value)) is not None:
            yield BEHIND, inner
    else:
        for base, names in _WRAPS.items():
            if isinstance(value, base):
                for name in names:
                    part = getattr(value, name, None)
                    if part is not None and not (name == "__self__" and is_foreign(part)):
                        yield name, part
                return


def behind(view: Any) -> dict[Any, Any] | None:
    """Return the dict that a view looks at; None of a class's attributes, which are looked at as such."""
    found = gc.get_referents(view)
    return found[0] if len(found) == 1 and type(found[0]) is dict and "__module__" not in found[0] else None


def is_looked_through(value: Any) -> bool:
    kind = kind_of(type(value))
    if kind is Kind.NDARRAY:
        return is_window(value)
    if kind is Kind.PLAIN:
        return isinstance(value, frozenset)
    return kind in (Kind.TUPLE, Kind.THROUGH) or (kind is Kind.FUNCTION and not is_users_function(value))


def is_foreign(obj: Any) -> bool:
    """Return whether it is of a class of an installed package other than torch, or a module."""
    cls = obj if isinstance(obj, type) else type(obj)
    if issubclass(cls, ModuleType):
        return True
    return cls.__module__.partition(".")[0] not in _NOT_FOREIGN and not is_users(
        file_of(sites.module_named(cls.__module__))
    )


def leads_to_state(value: Any) -> bool:
    """Return whether the walk has to look at a value that is no container and no object with attributes."""
    kind = kind_of(type(value))
    if kind is Kind.FUNCTION:
        return is_users_function(value) or any(is_users_function(inner) for _, inner in parts(value))
    if kind is Kind.CLASS:
        return is_users_class(value)
    if kind is Kind.THROUGH:
        return any(leads_to_state(part) for _, part in parts(value) if type(part) not in PLAIN)
    if kind is Kind.TUPLE:
        return any(leads_to_state(part) for part in tuple_items(value) if type(part) not in PLAIN)
    if kind is Kind.PLAIN and isinstance(value, frozenset):
        return any(True for _ in _elements(frozenset.__iter__(value)))
    return kind is not Kind.OPAQUE and kind is not Kind.PLAIN


def elements(held: Iterable[Any]) -> list[tuple[ElementOf, Any]]:
    """Return the objects among these that may hold state; none of so many that they are data, and no progress."""
    found = [*islice(_elements(held), _MOST_ELEMENTS + 1)]
    return found if len(found) <= _MOST_ELEMENTS else []


def _elements(held: Iterable[Any]) -> Iterator[tuple[ElementOf, Any]]:
    """Yield the objects among these that may hold state. One that has a hash of its own is known by what it is, and stays so."""
    numbers = Counter[str]()
    for element in held:
        cls = type(element)
        if cls in PLAIN or (cls is tuple and PLAIN.issuperset(map(type, element))):
            continue
        if _may_hold_state(element, cls):
            name = cls.__qualname__
            yield ElementOf(name, numbers[name]), element
            numbers[name] += 1


def split_by_order(
    held: list[tuple[ElementOf, Any]],
) -> tuple[list[tuple[ElementOf, Any]], list[tuple[ElementOf, Any]]]:
    """Return what another process finds in a set, and what it does not, as ranks call models and large tensors by their order.

    Of several of one class nobody knows there which one is meant.
    """
    numbers = Counter(key.cls for key, element in held if _has_name(element))
    apart = [entry for entry in held if numbers[entry[0].cls] > 1 and _has_name(entry[1])] if numbers else []
    names = {key for key, _ in apart}
    return [entry for entry in held if entry[0] not in names], apart


def _has_name(element: Any) -> bool:
    kind = kind_of(type(element))
    return kind in _NAMED or (kind is Kind.TENSOR and not is_small(element))


def _may_hold_state(element: Any, cls: Any) -> bool:
    if kind_of(cls) in _KNOWN_BY_HASH and cls.__hash__ is not object.__hash__:
        return False
    return leads_to_state(element)


def of_class(holder: Any, cls: str) -> list[Any]:
    """Return the elements, or keys, of a container that are objects of a class of this name."""
    if isinstance(holder, dict):
        held: Iterable[Any] = dict_items(holder)
    elif isinstance(holder, set):
        held = set.__iter__(holder)
    elif isinstance(holder, frozenset):
        held = frozenset.__iter__(holder)
    else:
        return []
    return [element for key, element in elements(held) if key.cls == cls]


def is_hidden(value: Any) -> bool:
    """Return whether an attribute that holds it is no state: a function, a class, a module, with nothing of the script's behind."""
    kind = kind_of(type(value))
    if kind is Kind.FILE:
        return not is_read(value)
    if kind is Kind.OPAQUE:
        return not isinstance(value, RemovableHandle)  # the script removes a hook by it
    return kind in (Kind.FUNCTION, Kind.CLASS, Kind.THROUGH) and not leads_to_state(value)


def is_alias(name: str, value: Any) -> bool:
    """Return whether a name means a function, a class or a module that has another name of its own, or none."""
    own = getattr(value, "__name__", None)
    if not isinstance(own, str):
        return kind_of(type(value)) is not Kind.OPAQUE or isinstance(value, weakref.ref)
    return own.rpartition(".")[2] != name


def cells(function: FunctionType) -> dict[str, Any]:
    """Return what the variables of the function around it are bound to."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # nothing is bound yet
            continue
    return found


def variables(function: FunctionType) -> dict[str, Any]:
    """Return what `cells` does, if any of it can change: in place, or because the function binds the name anew. Else nothing."""
    if not function.__closure__:
        return {}
    found = cells(function)
    found.pop("__class__", None)
    if any(leads_to_state(v) for v in found.values() if type(v) not in PLAIN) or rebinds(function.__code__):
        return found
    return {}


@functools.lru_cache(maxsize=4096)
def rebinds(code: CodeType) -> bool:
    """Return whether the code, or a function inside of it, binds a variable of the function around it anew."""
    outer = set(code.co_freevars)
    if not outer:
        return False
    if any(i.opname in ("STORE_DEREF", "DELETE_DEREF") and i.argval in outer for i in dis.get_instructions(code)):
        return True
    return any(isinstance(c, CodeType) and rebinds(c) for c in code.co_consts)


def bind(function: FunctionType, values: Mapping[str, Any]) -> None:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        if name in values:
            cell.cell_contents = values[name]


def defaults(function: FunctionType) -> dict[str, Any]:
    """Return the defaults that can change, as attributes of the function."""
    found: dict[str, Any] = {}
    if any(leads_to_state(v) for v in function.__defaults__ or () if type(v) not in PLAIN):
        found["__defaults__"] = function.__defaults__
    if any(leads_to_state(v) for v in (function.__kwdefaults__ or {}).values() if type(v) not in PLAIN):
        found["__kwdefaults__"] = function.__kwdefaults__
    return found


def fields(function: FunctionType) -> dict[str, Any]:
    """Return the function's own attributes; empty if there are none but the one that wrappers have."""
    own = vars(function)
    return own if len(own) > ("__wrapped__" in own) else {}


def has_state(function: FunctionType) -> bool:
    return bool(fields(function) or variables(function) or defaults(function))


def class_state(cls: type) -> dict[str, Any]:
    """Return the class attributes that are data, functions and classes of another name, and methods with something behind them."""
    found = {}
    for name, value in vars(cls).items():
        kind = kind_of(type(value))
        if isinstance(value, _MAY_BE_ALIAS) and not name.startswith("__") and is_alias(name, value):
            found[name] = value
        elif kind is Kind.FUNCTION or kind is Kind.THROUGH:
            inner = [value] if kind is Kind.FUNCTION else [v for _, v in parts(value)]
            if any(type(f) is FunctionType and is_users_function(f) and has_state(f) for f in inner):
                found[name] = value
        elif kind is not Kind.OPAQUE and not name.startswith(("__", "_abc_")) and not is_hidden(value):
            found[name] = value
    return found


def hooks(owner: Any, names: tuple[str, ...] = _HOOKS) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the hooks of a module or an optimizer with the script's own code behind them, by the attribute that keeps them."""
    found = []
    for name in names:
        registered = owner.__dict__.get(name)
        if registered and any(map(is_users_hook, registered.values())):
            found.append((name, tuple(registered.values())))
    return found


def tensor_hooks(tensor: Any) -> bool:
    """Return whether a hook of a tensor has something of the script's behind it. These are not walked into."""
    registered = [f for name in _TENSOR_HOOKS for f in (getattr(tensor, name, None) or {}).values()]
    return any(is_users_hook(f) and (type(f) is not FunctionType or has_state(f)) for f in registered)


def is_users_hook(hook: Any) -> bool:
    """Return whether a hook is of the script: a function, a method, or an object that is called."""
    function = hook.__func__ if isinstance(hook, MethodType) else hook
    if isinstance(function, functools.partial):
        return is_users_hook(function.func)
    if isinstance(function, FunctionType):
        return is_users_function(function)
    if type(function).__module__ == _TORCHS_WRAPPER:
        return is_users_hook(getattr(function, "hook", None))
    return kind_of(type(function)) is Kind.ATTRS and is_users_class(type(function))
