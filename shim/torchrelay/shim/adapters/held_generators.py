"""A generator of the script's that is kept in a variable, such as `stream = endless(loader)`: its place, and the way there.

One that only hands on what a data loader yields is at the same place whenever it is suspended in the same `yield`, its
loader's iterator has yielded as much, and its own variables are the same. A new process's generator is drawn from once, from
an iterator that was led to the one before its last item. What else it did on its way must have left no trace: so its source
may call nothing but what is listed here, and assign nothing but its own variables.

Leans on what the garbage collector says of a suspended generator, or of its frame before 3.11: the iterators of the loops
that it is in are there, and nowhere else. Seen on CPython 3.10 to 3.13.
"""

from __future__ import annotations

import ast
import functools
import gc
import inspect
import operator
from collections.abc import Iterator
from types import CodeType, FrameType, GeneratorType
from typing import Any, NamedTuple, TypeAlias

from torch.utils.data import dataloader

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters import frames, liveness
from torchrelay.shim.capture.callables import is_users
from torchrelay.shim.capture.kinds import Kind, kind_of

Held: TypeAlias = "GeneratorType[Any, Any, Any]"
LoaderIter = dataloader._BaseDataLoaderIter
_NEW, _OVER = -1, -2
_AT, _LEFT, _VARIABLE = "at", "left in range ", "variable "
_RANGES = (type(iter(range(0))), type(iter(range(1 << 65))))
_FUNCTIONS = frozenset({"iter", "next", "range", "len", "int", "float", "bool", "min", "max", "tuple", "list", "dict"})
_METHODS = frozenset(
    {
        "to",
        "cuda",
        "cpu",
        "float",
        "double",
        "half",
        "bfloat16",
        "long",
        "int",
        "view",
        "reshape",
        "unsqueeze",
        "squeeze",
        "clone",
    }
    | {"contiguous", "pin_memory", "items", "keys", "values", "set_epoch", "size", "dim"}
    | {"rand", "randn", "randint", "arange", "tensor", "stack", "cat"}
)
"""Of tensors, dicts, samplers and torch: nothing that would be missing or there twice, called once or ten times."""
_NOT_ALLOWED = (
    ast.Global, ast.Nonlocal, ast.With, ast.Import, ast.ImportFrom, ast.Delete, ast.FunctionDef, ast.AsyncFunctionDef,
    ast.ClassDef, ast.Lambda, ast.Await, ast.AsyncFor, ast.AsyncWith,
)  # fmt: skip


class Stand(NamedTuple):
    """`content`: where it is, as plain values; `source`: the loader's iterator that it draws from, if it is in one;
    `given`: what it was called with."""

    content: dict[str, Any]
    source: Any
    given: dict[str, Any]


def stand(generator: Held) -> Stand | None:
    """None where nobody could be led there."""
    code = generator.gi_code
    if not is_users(code.co_filename) or not _is_plain(code.co_filename, code.co_firstlineno, code.co_name):
        return None
    state = inspect.getgeneratorstate(generator)
    frame = generator.gi_frame
    if state == inspect.GEN_CLOSED or frame is None:
        return Stand({_AT: _OVER}, None, {})
    own = frames.read_locals(frame)
    given = {name: own[name] for name in _never_assigned(code) if name in own}
    if state == inspect.GEN_CREATED:
        return Stand({_AT: _NEW}, None, given)
    return _suspended(generator, frame, own, given) if state == inspect.GEN_SUSPENDED else None


def _suspended(generator: Held, frame: FrameType, own: dict[str, Any], given: dict[str, Any]) -> Stand | None:
    live = liveness.live_locals(frame)
    content: dict[str, Any] = {_AT: frame.f_lasti}
    sources = []
    for name, value in own.items():
        if name in given or (live is not None and name not in live):
            continue
        if isinstance(value, LoaderIter):
            sources.append(value)
        elif kind_of(type(value)) is Kind.PLAIN:
            content[_VARIABLE + name] = value
        else:
            return None
    for place, iterator in enumerate(_of_loops(generator, own)):
        if isinstance(iterator, LoaderIter):
            sources.append(iterator)
        elif isinstance(iterator, _RANGES):
            content[f"{_LEFT}{place}"] = operator.length_hint(iterator)
        else:
            return None
    if len(sources) > 1:
        return None
    return Stand(content, sources[0] if sources else None, given)


def _of_loops(generator: Held, own: dict[str, Any]) -> Iterator[Any]:
    """The iterators of the `for` loops that it is in, and what it yields from."""
    known = {id(value) for value in own.values()}
    frame = generator.gi_frame
    for obj in [*gc.get_referents(generator), *(gc.get_referents(frame) if frame is not None else ())]:
        if hasattr(type(obj), "__next__") and id(obj) not in known:
            known.add(id(obj))
            yield obj


def _never_assigned(code: CodeType) -> tuple[str, ...]:
    """Variables of the functions around it, and arguments that it does not bind anew."""
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    arguments = code.co_varnames[: count + bool(code.co_flags & inspect.CO_VARKEYWORDS)]
    assigned = _assigned(code.co_filename, code.co_firstlineno, code.co_name)
    return (*(a for a in arguments if a not in assigned), *code.co_freevars)


@functools.lru_cache(maxsize=64)
def _function(file: str, line: int, name: str) -> ast.FunctionDef | None:
    try:
        with open(file, "rb") as source:
            tree = ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.name != name:
            continue
        if line == min([node.lineno, *(d.lineno for d in node.decorator_list)]):
            return node
    return None


@functools.lru_cache(maxsize=64)
def _assigned(file: str, line: int, name: str) -> frozenset[str]:
    function = _function(file, line, name)
    stores = ast.walk(function) if function is not None else ()
    return frozenset(n.id for n in stores if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load))


@functools.lru_cache(maxsize=64)
def _is_plain(file: str, line: int, name: str) -> bool:
    function = _function(file, line, name)
    return function is not None and not function.decorator_list and all(map(_is_allowed, function.body))


def _is_allowed(statement: ast.stmt) -> bool:
    for node in ast.walk(statement):
        if isinstance(node, _NOT_ALLOWED):
            return False
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            return False
        if isinstance(node, ast.Call) and not _is_allowed_call(node.func):
            return False
    return True


def _is_allowed_call(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id in _FUNCTIONS
    return isinstance(function, ast.Attribute) and function.attr in _METHODS


def lead(generator: Held, content: dict[str, Any]) -> None:
    """To the place that `content` tells. The iterator that it makes for itself takes its record as it is made.

    Raises StateMismatchError if it does not come there.
    """
    there = stand(generator)
    if there is None:
        raise StateMismatchError(f"the generator {generator.__qualname__} cannot be led to its place here")
    if there.content == content:
        return
    if content[_AT] == _OVER:
        generator.close()
        return
    if there.content[_AT] != _NEW:
        raise StateMismatchError(f"the generator {generator.__qualname__} was drawn from where the new process begins")
    next(generator)
    there, frame = stand(generator), generator.gi_frame
    if there is None or frame is None or there.content[_AT] != content[_AT] or there.content.keys() != content.keys():
        raise StateMismatchError(f"the generator {generator.__qualname__} does not come to its place here")
    for place, iterator in enumerate(_of_loops(generator, frames.read_locals(frame))):
        left = content.get(f"{_LEFT}{place}")
        while left is not None and operator.length_hint(iterator) > left:
            next(iterator)
    values = {k.removeprefix(_VARIABLE): v for k, v in content.items() if k.startswith(_VARIABLE)}
    frames.set_locals(frame, values)
