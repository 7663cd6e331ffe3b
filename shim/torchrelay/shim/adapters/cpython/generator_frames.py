"""Read where a suspended generator stands, and write it back into the same generator or into another one of the same code.

That is the position in its code, its variables, and what its loops and `with` blocks have on the interpreter's stack. Nothing of
the generator's own code runs. Leans on the memory of generators and their frames: `PyFrameObject` (3.10), `PyGenObject` and
`_PyInterpreterFrame` (3.11 to 3.13). The places of the fields are compared with what Python says of a sample, and a copy of the
sample has to go on as the sample does. Where they do not agree, `WORKS` is False, and no generator can be entered. Seen on CPython
3.10, 3.11, 3.12 and 3.13 (64 bits, with the GIL).
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, GeneratorType
from typing import Any, NamedTuple

from torchrelay.protocol.errors import StateMismatchError

Generator = GeneratorType
EMPTY = object()
"""Stands in a slot that holds nothing."""
AS_IT_IS = object()
"""Stands in a slot that is left as it is."""

_WORD = ctypes.sizeof(ctypes.c_void_p)
_python = ctypes.PyDLL(None)
"""Not `ctypes.pythonapi`: what is declared there holds for the script and its packages, too."""
incref = _python.Py_IncRef
decref = _python.Py_DecRef
incref.argtypes = decref.argtypes = [ctypes.c_void_p]
incref.restype = decref.restype = None


class Stand(NamedTuple):
    """Where a generator stands.

    `state`: of the frame, as the interpreter numbers it. `at`: the place in the code, in the code's units. `slots`: the variables,
    then what is on the stack. `rest`: plain numbers beside these. `error`: the exception that it handles where it is suspended.
    """

    state: int
    at: int
    slots: tuple[Any, ...]
    rest: bytes
    error: BaseException | None = None


class _Layout(NamedTuple):
    """Offsets in bytes from the frame. Those of `state` and `error` are from the generator."""

    frame: int
    """The frame's offset from the generator; 0 where the frame is an object of its own."""
    code: int
    at: int
    depth: int
    state: int
    slots: int
    rest: tuple[tuple[int, int], ...]
    """Ranges of plain numbers: first byte, length."""
    counts_variables: bool
    """Whether `depth` counts the variables, too."""
    error: int
    """The exception that is being handled where it is suspended."""


_BLOCKS = 20
_LAYOUTS = {
    (3, 10): _Layout(0, 32, 96, 80, 108, 352, ((104, 4), (112, _BLOCKS * 12)), False, 56),
    (3, 11): _Layout(80, 32, 56, 64, 75, 72, (), True, 48),
    (3, 12): _Layout(72, 0, 56, 64, 67, 72, ((68, 2),), True, 40),
    (3, 13): _Layout(72, 0, 56, 64, 67, 72, ((68, 2),), True, 40),
}
_LAYOUT = _LAYOUTS.get(sys.version_info[:2])


@functools.lru_cache(maxsize=512)
def names(code: CodeType) -> tuple[str, ...]:
    """Return the names of the variables, in the order of their slots."""
    if sys.version_info < (3, 11):
        return (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
    own = dict.fromkeys((*code.co_varnames, *code.co_cellvars))
    return (*own, *code.co_freevars)


def is_over(generator: Generator[Any, Any, Any]) -> bool:
    return generator.gi_frame is None


def _base(generator: Generator[Any, Any, Any], layout: _Layout) -> int:
    return id(generator) + layout.frame if layout.frame else id(generator.gi_frame)


def _start(code: CodeType) -> int:
    """Return the address of the first instruction."""
    return id(code) + CodeType.__basicsize__


def read(generator: Generator[Any, Any, Any]) -> Stand | None:
    """Return where the generator stands; None for one that is over, or that runs.

    Before 3.11 None also for one that is suspended where it handles an exception.
    """
    layout = _LAYOUT
    if layout is None or generator.gi_frame is None or generator.gi_running:
        return None
    error: Any = None
    if ctypes.c_void_p.from_address(id(generator) + layout.error).value not in (None, id(None)):
        if not layout.frame:
            return None  # three words, and blocks of the frame's that belong to them
        error = ctypes.py_object.from_address(id(generator) + layout.error).value
    base = _base(generator, layout)
    variables = len(names(generator.gi_code))
    state_base = id(generator) if layout.frame else base
    state = ctypes.c_int8.from_address(state_base + layout.state).value
    depth = ctypes.c_int.from_address(base + layout.depth).value
    count = depth if layout.counts_variables else depth + variables
    if not variables <= count <= variables + generator.gi_code.co_stacksize:
        return None
    rest = b"".join(ctypes.string_at(base + first, length) for first, length in layout.rest)
    return Stand(state, _read_at(generator, base, layout), (*_objects(base + layout.slots, count),), rest, error)


def _read_at(generator: Generator[Any, Any, Any], base: int, layout: _Layout) -> int:
    if not layout.frame:
        return ctypes.c_int.from_address(base + layout.at).value
    return int(ctypes.c_void_p.from_address(base + layout.at).value or 0) - _start(generator.gi_code)


def _objects(address: int, count: int) -> Iterator[Any]:
    words, values = (_array(kind, address, count) for kind in (ctypes.c_void_p, ctypes.py_object))
    for place, word in enumerate(words):
        yield EMPTY if word is None else values[place]


def _array(kind: Any, address: int, count: int) -> Any:
    return (kind * count).from_address(address)


def write(generator: Generator[Any, Any, Any], stand: Stand) -> None:
    """Put a generator that is suspended, or has not begun, to where `stand` says.

    Raises StateMismatchError for a generator in another state, and where its code is another one.
    """
    layout = _LAYOUT
    now = read(generator)
    variables = len(names(generator.gi_code))
    most = variables + generator.gi_code.co_stacksize
    if layout is None or now is None or not variables <= len(stand.slots) <= most:
        raise StateMismatchError(f"the generator {generator.__qualname__} cannot be entered in the middle here")
    base = _base(generator, layout)
    slots = [
        now.slots[place] if slot is AS_IT_IS and place < len(now.slots) else EMPTY if slot is AS_IT_IS else slot
        for place, slot in enumerate(stand.slots)
    ]
    words = _array(ctypes.c_void_p, base + layout.slots, max(len(slots), len(now.slots)))
    before = [word for word in words[: len(now.slots)] if word is not None]
    for slot in slots:
        if slot is not EMPTY:
            incref(id(slot))
    for place, slot in enumerate(slots):
        words[place] = None if slot is EMPTY else id(slot)
    depth = len(slots) if layout.counts_variables else len(slots) - variables
    ctypes.c_int.from_address(base + layout.depth).value = depth
    state_base = id(generator) if layout.frame else base
    ctypes.c_int8.from_address(state_base + layout.state).value = stand.state
    if layout.frame:
        ctypes.c_void_p.from_address(base + layout.at).value = _start(generator.gi_code) + stand.at
    else:
        ctypes.c_int.from_address(base + layout.at).value = stand.at
    done = 0
    for first, length in layout.rest:
        ctypes.memmove(base + first, stand.rest[done : done + length], length)
        done += length
    if stand.error is not now.error:
        before.append(_handle(generator, layout, stand.error))
    for word in before:
        decref(word)


def _handle(generator: Generator[Any, Any, Any], layout: _Layout, error: BaseException | None) -> int | None:
    """Let the suspended generator handle this exception, or none. Return the address of the exception that it handled."""
    word = ctypes.c_void_p.from_address(id(generator) + layout.error)
    before = word.value
    incref(id(error))
    word.value = id(error)
    return before


def made(code: CodeType, namespace: dict[str, Any], name: str, cells: tuple[Any, ...]) -> Generator[Any, Any, Any]:
    """Return a generator of that code that has not begun. Of its variables only those of the functions around it have values."""
    function = FunctionType(code, namespace, name, None, cells)
    count = code.co_argcount
    keywords = dict.fromkeys(code.co_varnames[count : count + code.co_kwonlyargcount])
    generator: Generator[Any, Any, Any] = function(*[None] * count, **keywords)
    return generator


def wake(generator: Generator[Any, Any, Any], other: Generator[Any, Any, Any]) -> None:
    """Give a generator that is over the frame of `other`, which has the same code and no other holder.

    Raises StateMismatchError where that cannot be done.
    """
    layout = _LAYOUT
    code = generator.gi_code
    if layout is None or not layout.frame or not is_over(generator) or other.gi_code is not code:
        raise StateMismatchError(f"the generator {generator.__qualname__} is over, and cannot go on")
    length = layout.slots + _WORD * (len(names(code)) + code.co_stacksize)
    mine = id(generator)
    theirs = id(other)
    for offset, size in ((layout.frame, length), (layout.state, 1)):
        kept = ctypes.string_at(mine + offset, size)
        ctypes.memmove(mine + offset, theirs + offset, size)
        ctypes.memmove(theirs + offset, kept, size)


def _sample(items: list[Any], step: int) -> Any:
    total = 0

    def count() -> int:
        return total

    for first in items:
        for place, item in enumerate(first):
            try:
                total += step
                yield place, item, count()
            finally:
                step += 1


def _fields_are_there(sample: Generator[Any, Any, Any], layout: _Layout) -> bool:
    frame = sample.gi_frame
    code = sample.gi_code
    assert frame is not None
    base = _base(sample, layout)
    if layout.frame and type(sample).__basicsize__ != layout.frame + layout.slots + (0 if _no_first_slot() else _WORD):
        return False
    if ctypes.c_void_p.from_address(base + layout.code).value != id(code):
        return False
    at = _read_at(sample, base, layout)
    if not 0 <= (at * 2 if not layout.frame else at) - frame.f_lasti <= 4:
        return False
    count = ctypes.c_int.from_address(base + layout.depth).value
    variables = len(names(code))
    return count == 2 + (variables if layout.counts_variables else 0)


def _no_first_slot() -> bool:
    """Return whether the size of a generator leaves out its first variable."""
    return sys.version_info >= (3, 11)


def _works() -> bool:
    if _LAYOUT is None or sys.implementation.name != "cpython" or _WORD != 8:
        return False
    if not getattr(sys, "_is_gil_enabled", lambda: True)() or hasattr(sys, "gettotalrefcount"):
        return False
    sample: Any = _sample([["a", "b"], ["c"]], 1)
    next(sample)
    if not _fields_are_there(sample, _LAYOUT):
        return False
    frame = sample.gi_frame
    stand = read(sample)
    if stand is None:
        return False
    variables = names(sample.gi_code)
    told = dict(zip(variables, stand.slots))
    if any(told[name] is not frame.f_locals[name] for name in ("items", "first", "item", "count", "step")):
        return False
    other: Any = _sample([], 0)
    own = [item.__reduce__() for item in stand.slots[len(variables) :]]
    del frame
    free = other.gi_code.co_freevars
    assert not free
    copies = tuple(function(*arguments) for function, arguments, *_ in own)
    for copy, (_, _, *state) in zip(copies, own):
        if state:
            copy.__setstate__(state[0])
    write(other, stand._replace(slots=(*stand.slots[: len(variables)], *copies)))
    return [*other][-1][:2] == (0, "c") and inspect.getgeneratorstate(sample) == inspect.GEN_SUSPENDED


WORKS = _works()
