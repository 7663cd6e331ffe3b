"""Tell where the script's own generators, and Python's iterators, stand: what of it is state, and whether all of it can be had.

A generator goes back by being put to where it stood, and in another process one of the same code is put there: none of its code
runs for that. What it draws from is state of its own: a data loader's iterator, `zip`, another generator.
"""

from __future__ import annotations

import dis
import functools
import gc
import inspect
import itertools
import sys
import zlib
from collections.abc import Iterator, Mapping
from types import CellType, CodeType, FunctionType, GeneratorType
from typing import Any, NamedTuple

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.cpython import generator_frames, liveness
from torchrelay.shim.adapters.cpython import plain_iterators as plain
from torchrelay.shim.adapters.cpython.csv_readers import lines_of
from torchrelay.shim.adapters.cpython.generator_frames import AS_IT_IS, EMPTY
from torchrelay.shim.capture.state.parts import attributes
from torchrelay.shim.capture.values import callables
from torchrelay.shim.capture.values.kinds import PLAIN, Kind, kind_of
from torchrelay.shim.capture.values.read_files import is_used_up
from torchrelay.shim.script import sites

_DRAINED_MODULES = frozenset(
    {"_queue", "asyncio", "multiprocessing", "queue", "select", "selectors", "socket", "subprocess"}
    | {"tarfile", "zipfile", "concurrent"}
)
"""What is read from these is gone: it cannot be put back."""
_PYTHONS_OWN = (Kind.ITERATOR, Kind.CYCLE)
_HANDLED = "<handled>"
"""Stands for the exception that is handled, beside the names of variables."""
_MOST_SOURCES = 16
"""A longer tuple is taken for data."""


class CodeOrigin(NamedTuple):
    """Where a generator's code comes from, so that another process finds the same code."""

    module: str
    file: str
    name: str
    line: int
    checksum: int


class GeneratorStand(NamedTuple):
    """Where a generator stands. `stand`: None for one that is over, or runs.

    `values`: its variables by name, what is on its stack by place, and the exception that it handles. `cells`: variables that it
    shares with functions around it or inside of it, by name.
    """

    stand: generator_frames.Stand | None
    values: dict[Any, Any]
    cells: dict[str, Any]
    code: CodeType
    namespace: dict[str, Any]
    runs: bool = False
    """Whether it is a generator that has called the training loop: its variables are those of its frame."""

    def same(self, other: GeneratorStand) -> bool:
        mine = self.stand
        theirs = other.stand
        if self.runs or other.runs:
            return self.runs is other.runs
        if mine is None or theirs is None:
            return mine is theirs
        if mine[:2] != theirs[:2] or len(mine.slots) != len(theirs.slots):
            return False
        if mine.error is not theirs.error or any(a is not b for a, b in zip(mine.slots, theirs.slots)):
            return False
        return all(a is b for a, b in zip(self.cells.values(), other.cells.values()))


def standing(generator: GeneratorType[Any, Any, Any]) -> GeneratorStand | None:
    """Return where the generator stands; None where that cannot be told: it runs, unless it has loops that may train."""
    frame = generator.gi_frame
    code = generator.gi_code
    if frame is None:
        return GeneratorStand(None, {}, {}, code, {})
    if generator.gi_running and sites.may_train(code):
        return GeneratorStand(None, {}, {}, code, frame.f_globals, runs=True)
    stand = generator_frames.read(generator) if generator_frames.WORKS else None
    if stand is None:
        return None
    names = generator_frames.names(code)
    live = liveness.live_locals(frame)
    slots = list(stand.slots)
    values = dict[Any, Any]()
    cells = dict[str, Any]()
    shared = frozenset((*code.co_cellvars, *code.co_freevars))
    for place, slot in enumerate(stand.slots):
        name = names[place] if place < len(names) else None
        if name is None:
            values[place - len(names)] = slot
        elif type(slot) is CellType and name in shared:
            cells[name] = _contents(slot)
        elif live is not None and name not in live:
            slots[place] = AS_IT_IS
        else:
            values[name] = slot
    if stand.error is not None:
        values[_HANDLED] = stand.error
    return GeneratorStand(stand._replace(slots=tuple(slots)), _full(values), _full(cells), code, frame.f_globals)


def stands_still(generator: GeneratorType[Any, Any, Any], then: GeneratorStand) -> bool:
    """Return whether a suspended generator is where it was, with the same variables, without a look at what these are."""
    before = then.stand
    now = generator_frames.read(generator) if before is not None and generator_frames.WORKS else None
    if before is None or now is None or now[:2] != before[:2] or now.error is not before.error:
        return False
    if len(now.slots) != len(before.slots):
        return False
    if any(a is not b and b is not AS_IT_IS for a, b in zip(now.slots, before.slots)):
        return False
    if not then.cells:
        return True
    slots = zip(generator_frames.names(then.code), now.slots)
    return all(_contents(slot) is then.cells.get(name, EMPTY) for name, slot in slots if type(slot) is CellType)


def _full(values: dict[Any, Any]) -> dict[Any, Any]:
    return {name: value for name, value in values.items() if value is not EMPTY}


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing is bound yet
        return EMPTY


def origin(found: GeneratorStand) -> CodeOrigin:
    code = found.code
    module = str(found.namespace.get("__name__", ""))
    return CodeOrigin(module, code.co_filename, code.co_name, code.co_firstlineno, checksum(code))


@functools.lru_cache(maxsize=256)
def checksum(code: CodeType) -> int:
    return zlib.crc32(repr((code.co_varnames, code.co_names)).encode(), zlib.crc32(code.co_code))


def has_not_begun(generator: GeneratorType[Any, Any, Any]) -> bool:
    return inspect.getgeneratorstate(generator) == inspect.GEN_CREATED


def put_back(generator: GeneratorType[Any, Any, Any], then: GeneratorStand) -> None:
    """Put the generator back, in the process that `then` was taken in.

    Raises StateMismatchError where it cannot go on from there.
    """
    if then.runs and not generator.gi_running:
        raise StateMismatchError(f"the generator {generator.__qualname__}, which trains, has ended or been left")
    if then.stand is None:
        return
    if generator_frames.is_over(generator):
        generator_frames.wake(generator, like(then))
    generator_frames.write(generator, then.stand)
    for name, cell in _cells(generator, then.cells):
        cell.cell_contents = then.cells[name]


def like(found: GeneratorStand) -> GeneratorType[Any, Any, Any]:
    """Return a generator of the same code that has not begun."""
    assert found.stand is not None
    known = dict(zip(generator_frames.names(found.code), found.stand.slots))
    cells = tuple(known[name] for name in found.code.co_freevars)
    return generator_frames.made(found.code, found.namespace, found.code.co_name, cells)


def _cells(generator: GeneratorType[Any, Any, Any], wanted: Mapping[str, Any]) -> Iterator[tuple[str, CellType]]:
    stand = generator_frames.read(generator)
    names = generator_frames.names(generator.gi_code)
    for name, slot in zip(names, stand.slots if stand is not None else ()):
        if type(slot) is CellType and name in wanted:
            yield name, slot


def enter(
    generator: GeneratorType[Any, Any, Any], recorded: tuple[int, int, int, bytes], found: GeneratorStand
) -> None:
    """Put a generator of this process where another process's stood. Raises StateMismatchError where it cannot.

    `recorded`: state, place in the code, depth of the stack, numbers. `found`: what its variables are to be.
    """
    state, at, depth, rest = recorded
    names = generator_frames.names(generator.gi_code)
    shared = {*generator.gi_code.co_cellvars, *generator.gi_code.co_freevars}
    slots = [AS_IT_IS if n in shared and n not in found.values else found.values.get(n, EMPTY) for n in names]
    slots += [found.values.get(place, EMPTY) for place in range(depth)]
    generator_frames.write(generator, generator_frames.Stand(state, at, tuple(slots), rest, found.values.get(_HANDLED)))
    for name, cell in _cells(generator, found.cells):
        cell.cell_contents = found.cells[name]


# Whether going back is enough.


def is_whole(iterator: Any, seen: set[int] | None = None) -> bool:
    """Return whether the iterator, and all that it draws from, goes back when its state is put back.

    `seen`: ids of what need not be looked at, such as queues whose items come again.
    """
    seen = set() if seen is None else seen
    if id(iterator) in seen:
        return True
    seen.add(id(iterator))
    kind = kind_of(type(iterator))
    if kind is Kind.GENERATOR:
        found = standing(iterator)
        if found is not None and found.runs:
            return True  # its frame goes back as the others do
        return found is not None and all(
            _goes_back(value, seen)
            for part in (found.values, found.cells, _globals(found.code, found.namespace))
            for value in part.values()
        )
    if kind in _PYTHONS_OWN:
        place = plain.read(iterator)
        return place is not None and all(_goes_back(value, seen) for value in _held(place))
    return _goes_back(iterator, seen)


def _held(place: plain.IteratorPlace) -> list[Any]:
    """Return what an iterator holds, and what is in its tuples: `zip` has a tuple of iterators."""
    held = list(place.held.values())
    return held + [part for value in held if type(value) is tuple and len(value) <= _MOST_SOURCES for part in value]


def _globals(code: CodeType, namespace: Mapping[str, Any]) -> dict[str, Any]:
    return {name: namespace[name] for name in code.co_names if name in namespace}


def _goes_back(value: Any, seen: set[int]) -> bool:
    cls = type(value)
    if cls in PLAIN:
        return True
    kind = kind_of(cls)
    if kind is Kind.QUEUE and id(value) in seen:
        return True
    if kind is Kind.GENERATOR or kind in _PYTHONS_OWN:
        return is_whole(value, seen)
    if kind is Kind.UNKNOWN or is_drained(value):
        return False
    if kind is Kind.THROUGH:
        owner = getattr(value, "__self__", None) or lines_of(value)
        return owner is None or _goes_back(owner, seen)
    if kind is Kind.ATTRS and id(value) not in seen:
        seen.add(id(value))
        return all(_is_no_source(v) or _goes_back(v, seen) for v in attributes(value).values())
    return True


def _is_no_source(value: Any) -> bool:
    """Return whether an attribute's value is not to be looked into: only what can be drawn from is."""
    return not hasattr(type(value), "__next__") and not is_drained(value) and kind_of(type(value)) is not Kind.UNKNOWN


def is_drained(value: Any) -> bool:
    """Return whether reading uses it up: a file that is read, a queue, a socket."""
    if kind_of(type(value)) is Kind.FILE:
        return is_used_up(value)
    module = getattr(type(value), "__module__", "") or ""
    return kind_of(type(value)) is not Kind.PLAIN and module.partition(".")[0] in _DRAINED_MODULES


def has_generator(iterator: Any) -> bool:
    """Return whether code of a generator runs when the iterator is drawn from."""
    return any(kind_of(type(found)) is Kind.GENERATOR for found in sources(iterator))


def sources(iterator: Any) -> list[Any]:
    """Return the iterator and what it draws from, the nearest first."""
    found = [iterator]
    seen = {id(iterator)}
    for each in found:
        for value in direct_sources(each):
            if id(value) not in seen:
                seen.add(id(value))
                found.append(value)
    return found


def sources_below(iterator: Any) -> list[Any]:
    """Return what the iterator draws from, the nearest first."""
    return sources(iterator)[1:]


def direct_sources(iterator: Any) -> list[Any]:
    """Return what the iterator itself draws from."""
    kind = kind_of(type(iterator))
    below: list[Any] = []
    if kind is Kind.GENERATOR:
        now = standing(iterator)
        below = [*now.values.values(), *now.cells.values()] if now is not None else []
    elif kind in _PYTHONS_OWN:
        place = plain.read(iterator)
        below = _held(place) if place is not None else []
    elif kind is Kind.ATTRS:
        below = list(attributes(iterator).values())
    return [value for value in below if hasattr(type(value), "__next__")]


def cycles_below(iterator: Any) -> list[Any]:
    """Return the cycles that one of Python's own iterators draws from, and the iterator if it is one."""
    if kind_of(type(iterator)) not in _PYTHONS_OWN:
        return []
    return [source for source in sources(iterator) if isinstance(source, itertools.cycle)]


# Code that another process has run.


class Code(NamedTuple):
    """Code that was found here. `around`: the code that it stands in, if it is not a module's."""

    code: CodeType
    namespace: dict[str, Any]
    around: CodeType | None


def code_of(wanted: CodeOrigin) -> Code | None:
    """Return the same code here; None where there is none."""
    module = sys.modules.get(wanted.module)
    seen: set[int] = set()
    for function in gc.get_objects() if module is not None else ():
        if type(function) is FunctionType and function.__globals__ is vars(module):
            found = _within(function.__code__, None, wanted, seen)
            if found is not None:
                return Code(found[0], vars(module), found[1])
    return None


def _within(
    code: CodeType, around: CodeType | None, wanted: CodeOrigin, seen: set[int]
) -> tuple[CodeType, CodeType | None] | None:
    if id(code) in seen:
        return None
    seen.add(id(code))
    if is_code_of(code, wanted):
        return code, around
    inner = (_within(constant, code, wanted, seen) for constant in code.co_consts if isinstance(constant, CodeType))
    return next((found for found in inner if found is not None), None)


def is_code_of(code: CodeType, wanted: CodeOrigin) -> bool:
    return (code.co_name, code.co_firstlineno) == (wanted.name, wanted.line) and checksum(code) == wanted.checksum


def shares_variables(code: CodeType, around: CodeType | None) -> bool:
    """Return whether a variable that the code has from the function around it can be bound anew, there or by itself."""
    outer = set(code.co_freevars)
    if not outer or callables.rebinds(code):
        return bool(outer)
    stores = [i.argval for i in dis.get_instructions(around) if i.opname == "STORE_DEREF"] if around is not None else []
    return around is None or any(stores.count(name) > 1 for name in outer)
