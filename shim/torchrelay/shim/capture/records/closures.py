"""Write and make functions that another one has returned, such as a progress bar's printer, or a schedule that training exchanges.

A new process has to make such functions. Each is found in the code of the one around it, and its variables are given what they
mean. What set-up has made in the new process of the same code is kept as it is, unless its variables are settled, and mean
something else.
"""

from __future__ import annotations

import functools
import inspect
import pickle
import sys
import weakref
from types import BuiltinFunctionType, CellType, CodeType, FrameType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

from torchrelay.shim.adapters.cpython import frames as frame_access
from torchrelay.shim.capture.state.tags import OPAQUE, REF, VALUE, WEAK
from torchrelay.shim.capture.values import by_value, callables
from torchrelay.shim.capture.values.alike import alike
from torchrelay.shim.capture.values.kinds import PLAIN
from torchrelay.shim.capture.values.replay_point import ABSENT

if TYPE_CHECKING:
    from torchrelay.shim.capture.records.encode import Encoder
    from torchrelay.shim.capture.records.rebuild import StateRebuild

_LOCALS = "<locals>"
_DEEPEST = 4
"""How deep functions in variables of functions are followed."""
_UNBOUND = ("unbound",)
_GOES_ON = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""Code that may stand somewhere, and go on later."""


Place = tuple[str, tuple[str, ...], tuple[int, ...]]
"""`module`, `outer` and `places` of a closure."""


class Closure(NamedTuple):
    """A function in written form. `outer`: names that lead from the module to a function. `places`: from its code to this one's.

    The places are those among the constants. `cells`: what tells one from another in the process that wrote it, so that two
    functions go on sharing a variable. `is_settled`: whether nothing can bind its variables anew.
    """

    module: str
    outer: tuple[str, ...]
    places: tuple[int, ...]
    defaults: tuple[Any, ...] | None
    cells: tuple[int, ...]
    values: tuple[Any, ...]
    is_settled: bool


def written(encoder: Encoder, function: FunctionType, depth: int = 0) -> tuple[Any, ...] | None:
    """Return the written form of a function without a node; None where no other process could make it."""
    found = _place_of(function) if depth < _DEEPEST else None
    defaults = function.__defaults__
    cells = function.__closure__ or ()
    if found is None or vars(function) or function.__kwdefaults__ or not _is_plain(defaults or ()):
        return None
    values = tuple(_value(encoder, cell, depth) for cell in cells)
    if any(value is None for value in values):
        return None
    is_settled = not cells or (all(map(_is_constant, cells)) and _is_over(encoder, found))
    if not is_settled:  # what they mean may be another object, or another number, at the next boundary
        encoder.weak = True
    return (OPAQUE, type(function).__qualname__, Closure(*found, defaults, tuple(map(id, cells)), values, is_settled))


def form_of(encoder: Encoder, function: FunctionType) -> tuple[Any, ...] | None:
    """Return how a function with a node is made again, without its variables; None where no other process could make it.

    Code that goes on and binds them anew would not see the variables of one that is made.
    """
    found = _place_of(function)
    defaults = function.__defaults__
    if found is None or vars(function) or function.__kwdefaults__ or not _is_plain(defaults or ()):
        return None
    return (*found, defaults, tuple(map(id, function.__closure__ or ()))) if _is_over(encoder, found) else None


def empty(rebuild: StateRebuild, form: tuple[Any, ...]) -> Any:
    """Return a function as `form_of` has described it, whose variables are still unbound, or ABSENT."""
    module, outer, places, defaults, numbers = form
    code = _code_at(module, outer, places)
    if code is None or len(code.co_freevars) != len(numbers):
        return ABSENT
    cells = tuple(rebuild.cells.setdefault(number, CellType()) for number in numbers)
    return FunctionType(code, vars(sys.modules[module]), code.co_name, defaults, cells)


def stands_for(there: Any, closure: Closure) -> bool:
    """Return whether a function of this process is the recorded one."""
    if type(there) is not FunctionType or _place_of(there) != (closure.module, closure.outer, closure.places):
        return False
    if not closure.is_settled:
        return True  # it shares its variables with other code
    cells = [_constant_in(cell) for cell in there.__closure__ or ()]
    return there.__defaults__ == closure.defaults and alike(cells, [*map(_constant_of, closure.values)])


def _constant_in(cell: CellType) -> Any:
    return cell.cell_contents if _is_constant(cell) else _UNBOUND


def _constant_of(value: tuple[Any, ...]) -> Any:
    return pickle.loads(value[1]) if value[0] == VALUE else _UNBOUND


def _is_constant(cell: CellType) -> bool:
    try:
        return type(cell.cell_contents) in PLAIN
    except ValueError:
        return False


def _is_over(encoder: Encoder, place: Place) -> bool:
    """Return whether nothing can bind variables of the function around it anew: no code in it does so, and it has returned."""
    module, outer, places = place
    code = _code_at(module, outer, places[:-1])
    if code is None or code.co_flags & _GOES_ON or len(places) > 1 or code in encoder.running_code:
        return False
    return not any(isinstance(inner, CodeType) and callables.rebinds(inner) for inner in code.co_consts)


def _place_of(function: FunctionType) -> Place | None:
    module = sys.modules.get(function.__module__)
    if module is None or function.__globals__ is not vars(module):
        return None
    try:
        found = _find_place(function.__module__, function.__qualname__, function.__code__)
    except LookupError:
        return None
    return found if _code_at(*found) is function.__code__ else None


@functools.lru_cache(maxsize=4096)
def _find_place(module: str, qualified_name: str, wanted: CodeType) -> Place:
    """Return the function's place. Raises LookupError where it is nowhere."""
    names, _, rest = qualified_name.partition(f".{_LOCALS}.")
    if not rest:
        code = _code_at(module, (), ())
        return module, (), (_place_in(code.co_consts if code is not None else (), wanted),)
    outer = tuple(names.split("."))
    code = _code_at(module, outer, ())
    places = []
    for name in rest.split(f".{_LOCALS}."):
        inner = code.co_consts if code is not None else ()
        place = next((n for n, c in enumerate(inner) if _may_lead_to(c, name, wanted)), None)
        if place is None:
            raise LookupError(qualified_name)
        places.append(place)
        code = inner[place]
    return module, outer, tuple(places)


def _place_in(constants: tuple[Any, ...], wanted: CodeType) -> int:
    """Return where a script that runs at its top has the code of a function. Raises LookupError where it has not."""
    for place, constant in enumerate(constants):
        if constant is wanted:
            return place
    raise LookupError(wanted.co_name)


def _of_running(module: Any) -> CodeType | None:
    """Return the code of a module that is being run, such as the script: of others nothing is kept."""
    frame: FrameType | None = sys._getframe() if module is not None else None
    while frame is not None:
        if frame_access.is_module_frame(frame) and frame.f_globals is vars(module):
            return frame.f_code
        frame = frame.f_back
    return None


def _may_lead_to(code: Any, name: str, wanted: CodeType) -> bool:
    return isinstance(code, CodeType) and code.co_name == name and (name != wanted.co_name or code is wanted)


def _code_at(module: str, outer: tuple[str, ...], places: tuple[int, ...]) -> CodeType | None:
    """Return the code at this place, None where this process has nothing there."""
    found: Any = sys.modules.get(module)
    for name in outer:
        found = vars(found).get(name) if hasattr(found, "__dict__") else None
    code = getattr(getattr(found, "__func__", found), "__code__", None) if outer else _of_running(found)
    for place in places:
        code = code.co_consts[place] if isinstance(code, CodeType) and place < len(code.co_consts) else None
    return code if isinstance(code, CodeType) else None


def _value(encoder: Encoder, cell: CellType, depth: int) -> Any:
    """Return the written form of a variable's value; None where it cannot be written."""
    try:
        value = cell.cell_contents
    except ValueError:
        return _UNBOUND
    cls: Any = type(value)
    if cls in PLAIN:
        return (VALUE, pickle.dumps(value))
    if cls is weakref.ProxyType:
        held = encoder.reference(value.__init__.__self__)
        return None if held is None else (WEAK, held)
    known = encoder.reference(value)
    if known is not None:
        return known
    if isinstance(value, (FunctionType, BuiltinFunctionType, MethodType, type)):
        return encoder.callable(value) or (
            written(encoder, value, depth + 1) if isinstance(value, FunctionType) else None
        )
    if by_value.is_standard_stream(value) or (cls in (list, dict) and _is_plain(value)):
        kept = by_value.dumps(value)
        return None if kept is None else (VALUE, kept)
    return None


def _is_plain(values: Any) -> bool:
    return all(type(value) in PLAIN for value in ([*values, *values.values()] if type(values) is dict else values))


def made(rebuild: StateRebuild, closure: Closure) -> Any:
    """Return such a function of this process, or ABSENT."""
    code = _code_at(closure.module, closure.outer, closure.places)
    if code is None or len(code.co_freevars) != len(closure.cells):
        return ABSENT
    cells = []
    for number, value in zip(closure.cells, closure.values):
        cell = rebuild.cells.get(number)
        if cell is None:
            cell = rebuild.cells[number] = CellType()
            if value != _UNBOUND:
                content = _content(rebuild, value)
                if content is ABSENT:
                    del rebuild.cells[number]
                    return ABSENT
                cell.cell_contents = content
        cells.append(cell)
    return FunctionType(code, vars(sys.modules[closure.module]), code.co_name, closure.defaults, tuple(cells))


def _content(rebuild: StateRebuild, value: tuple[Any, ...]) -> Any:
    if value[0] == WEAK:
        target = rebuild.decode(value[1], ABSENT)
        return ABSENT if target is ABSENT else weakref.proxy(target)
    return rebuild.objects[value[1]] if value[0] == REF else rebuild.decode(value, ABSENT)
