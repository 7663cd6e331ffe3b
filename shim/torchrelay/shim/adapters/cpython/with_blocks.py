"""Find the `with` blocks of a function that never swallow an exception: behind one of these all was written that it writes.

A `with` ends an exception where the manager's `__exit__` returns a true value. Which manager it is, is read from the bytecode in
front of the block (`torch.no_grad()`, `self.context`), and looked up as it is at the head. One that is not found may swallow, and
so may one that is not written in Python. Not seen: a class whose `__new__` gives an object of another class, and an attribute that
a function binds anew between the head and the block. Seen on 3.10 to 3.13; opcodes are told by their names.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import enum
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import is_
from types import CellType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch

from torchrelay.shim.adapters.cpython.bytecode_flow import flow, flow_of_exceptions, handlers, instructions_of
from torchrelay.shim.adapters.cpython.frames import read_locals

_MISSING = object()
_ENTER = frozenset({"BEFORE_WITH", "SETUP_WITH"})
_JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})
_NAMES = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_DEREF", "LOAD_CLASSDEREF"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_GO_ON = frozenset({"JUMP_FORWARD", "JUMP_ABSOLUTE"})
_NOTHING = frozenset({"PUSH_NULL", "EXTENDED_ARG", "NOP", "CACHE", "KW_NAMES", "COPY_FREE_VARS", "RESUME"})
_MOST_NESTED = 8
"""Managers that are made by functions with a `with` of their own are followed so deep."""
_HELPER = contextlib.contextmanager(lambda: iter(())).__code__  # of the functions that contextlib makes

_PLAIN_LOOKUP: tuple[Any, ...] = (object.__getattribute__, ModuleType.__getattribute__, type.__getattribute__)
"""How attributes are looked up where the class has no way of its own."""

Look = Callable[[str], Any]
"""Looks up a variable; _MISSING where there is none."""


class _Block(NamedTuple):
    enters: int
    """The place of the instruction that enters it."""
    swallows: int
    """The place of the jump that is taken where it has swallowed an exception."""


class _Manager(NamedTuple):
    """How a `with` has its manager: by a variable, and attributes of what that holds.

    `is_made`: what is found there is called. `of_nothing`: it is called without arguments.
    """

    name: str
    attributes: tuple[str, ...]
    is_made: bool
    of_nothing: bool


class _Blocks:
    """The blocks of a code object, as seen from one of its instructions, with the latest answer about their managers."""

    def __init__(self, code: CodeType, offset: int) -> None:
        self.code = code
        changing = _bound_behind(code, offset) if _blocks(code) else frozenset()
        self.managers = {block: _managers(code, block, changing) for block in _blocks(code)}
        self.managers = {block: managers for block, managers in self.managers.items() if None not in managers}
        self.names = tuple({manager.name for managers in self.managers.values() for manager in managers if manager})
        self.latest: tuple[Any, ...] = ()
        """What makes the managers, or is their class. No manager is kept."""
        self.never: frozenset[int] = frozenset()


_known: dict[tuple[int, int], _Blocks] = {}


def never_taken(frame: FrameType) -> frozenset[int]:
    """Return the places of jumps that only a `with` block takes that swallows an exception, of blocks that never do.

    It is asked at each head: the same code can run with other managers. What the code itself may bind anew on its way from here to
    the block is not known.
    """
    code = frame.f_code
    key = (id(code), frame.f_lasti)  # hashing a code object looks at all that is in it
    blocks = _known.get(key)
    if blocks is None or blocks.code is not code:
        blocks = _known[key] = _Blocks(code, frame.f_lasti)
    if blocks.names:
        look = _look(read_locals(frame, blocks.names), frame.f_globals)
        found = {block: [_found(manager, look) for manager in managers] for block, managers in blocks.managers.items()}
        now = tuple(value for values in found.values() for value in values)
        if len(now) != len(blocks.latest) or not all(map(is_, now, blocks.latest)):
            blocks.latest = now
            blocks.never = _of(found, blocks.managers, 0)
    return blocks.never


def _never_taken(code: CodeType, look: Look, depth: int) -> frozenset[int]:
    managers = {block: _managers(code, block, frozenset()) for block in _blocks(code)}
    found = {block: [_found(manager, look) for manager in each] for block, each in managers.items()}
    return _of(found, managers, depth)


def _of(
    found: Mapping[_Block, Sequence[Any]], managers: Mapping[_Block, Sequence[_Manager | None]], depth: int
) -> frozenset[int]:
    return frozenset(
        block.swallows
        for block, values in found.items()
        if values and not any(_may_swallow(manager, value, depth) for manager, value in zip(managers[block], values))
    )


def _bound_behind(code: CodeType, offset: int) -> frozenset[str]:
    """Return the variables and attributes that the code may bind behind an instruction."""
    instructions = instructions_of(code)
    ways = flow(code)
    caught = flow_of_exceptions(code)
    queue = [sum(i.offset <= offset for i in instructions) - 1]
    seen = set(queue)
    for place in queue:
        new = {n for n in (*ways[place], *caught[place]) if n not in seen}
        queue += sorted(new)
        seen |= new
    bound: set[str] = set()
    for place in seen:
        name = instructions[place].opname
        value = instructions[place].argval
        if name.startswith("STORE_") and name != "STORE_SUBSCR":
            bound.update(v for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, str))
    return frozenset(bound)


def _look(*namespaces: Mapping[str, Any]) -> Look:
    def look(name: str) -> Any:
        for names in (*namespaces, vars(builtins)):
            if name in names:
                return names[name]
        return _MISSING

    return look


@functools.lru_cache(maxsize=512)
def _blocks(code: CodeType) -> tuple[_Block, ...]:
    instructions = instructions_of(code)
    enters = [place for place, i in enumerate(instructions) if i.opname in _ENTER]
    found = []
    for place, instruction in enumerate(instructions):
        if instruction.opname != "WITH_EXCEPT_START":
            continue
        jump = next((n for n in range(place + 1, len(instructions)) if instructions[n].opname != "TO_BOOL"), -1)
        entered = _enters(code, instructions, enters, place)
        if jump >= 0 and entered >= 0 and instructions[jump].opname.endswith("IF_TRUE"):
            found.append(_Block(entered, jump))
    return tuple(found)


def _enters(code: CodeType, instructions: Sequence[dis.Instruction], enters: Sequence[int], handler: int) -> int:
    """Return the place where the block is entered that has this handler, or -1."""
    first = handler - 1 if handler and instructions[handler - 1].opname == "PUSH_EXC_INFO" else handler
    offset = instructions[first].offset
    for place in enters:
        if instructions[place].opname == "SETUP_WITH" and instructions[place].argval == offset:
            return place
    starts = [start for start, _, target in handlers(code) if target == offset]
    before = [place for place in enters if starts and instructions[place].offset < min(starts)]
    return max(before, default=-1)


def _managers(code: CodeType, block: _Block, changing: Collection[str]) -> list[_Manager | None]:
    """Return how the `with` may have its manager: `a if b else c` ends at two places. None where the code does not tell.

    `changing`: names that may be bound anew before it.
    """
    instructions = instructions_of(code)
    ways = flow(code)
    ends = [place for place in range(block.enters) if block.enters in ways[place]]
    try:
        before = [end if instructions[end].opname in _GO_ON else end + 1 for end in ends]
        found = [_manager(instructions, end) for end in before]
    except ValueError:
        return [None]
    return [None if m is None or not {m.name, *m.attributes}.isdisjoint(changing) else m for m in found]


def _manager(instructions: Sequence[dis.Instruction], end: int) -> _Manager | None:
    """Return how the manager is had that the expression before `end` gives."""
    chain = _expression(instructions, end)
    if not chain or chain[0].opname not in _NAMES:
        return None
    depth = _effect(chain[0])
    at = 1
    while at < len(chain) and chain[at].opname in _ATTRIBUTES:
        depth += _effect(chain[at])
        at += 1
    if at < len(chain) and not _is_called_last(chain[at:], depth):
        return None
    of_nothing = chain[-1].arg == 0 and all(i.opname in ("PRECALL", "CALL", "CALL_FUNCTION") for i in chain[at:])
    return _Manager(chain[0].argval, tuple(i.argval for i in chain[1:at]), at < len(chain), of_nothing)


def _found(manager: _Manager | None, look: Look) -> Any:
    """Return what makes the manager, or its class where it is there already; _MISSING if that is not known."""
    if manager is None:
        return _MISSING
    found = look(manager.name)
    for name in manager.attributes:
        if found is not _MISSING:
            found = _attribute(found, name)
    if found is _MISSING or manager.is_made:
        return found
    return type(found)


def _expression(instructions: Sequence[dis.Instruction], end: int) -> list[dis.Instruction]:
    """Return the instructions that make the value on the stack's top before `end`; none where there are several ways to it."""
    first = end
    wanted = 1
    while wanted > 0:
        first -= 1
        if first < 0 or instructions[first].opcode in _JUMPS:
            return []
        wanted -= _effect(instructions[first])
    if any(i.is_jump_target for i in instructions[first + 1 : end]):
        return []
    return [i for i in instructions[first:end] if i.opname not in _NOTHING]


def _effect(instruction: dis.Instruction) -> int:
    """Return by how many values an instruction changes the stack. Raises ValueError where this interpreter does not tell."""
    return (
        0 if instruction.opname in ("EXTENDED_ARG", "CACHE") else dis.stack_effect(instruction.opcode, instruction.arg)
    )


def _is_called_last(rest: Sequence[dis.Instruction], depth: int) -> bool:
    """Return whether what lies at `depth` of the stack is called by the last instruction, and only there."""
    now = depth
    for instruction in rest[:-1]:
        now += _effect(instruction)
        if now < depth:
            return False
    return rest[-1].opname.startswith("CALL")


def _attribute(owner: Any, name: str) -> Any:
    """Return an attribute without running code of the owner's, bound as Python would bind it."""
    if type(owner) is ModuleType:
        return vars(owner).get(name, _MISSING)
    if type(owner).__getattribute__ not in _PLAIN_LOOKUP:
        return _MISSING
    found = inspect.getattr_static(owner, name, _MISSING)
    if found is _MISSING and isinstance(owner, torch.nn.Module):
        return owner._modules.get(name, _MISSING)
    if isinstance(found, (staticmethod, classmethod)):
        return found.__func__
    if isinstance(found, (FunctionType, type)):
        return found
    return _MISSING if hasattr(type(found), "__get__") else found


def _may_swallow(manager: _Manager | None, found: Any, depth: int) -> bool:
    """Return whether a manager may swallow an exception. `found`: as `_found` returns it."""
    if manager is None or found is _MISSING or depth > _MOST_NESTED:
        return True
    if not manager.is_made:
        return _exit_may_swallow(found)
    by = found
    while isinstance(by, (MethodType, functools.partial)):
        by = by.__func__ if isinstance(by, MethodType) else by.func
    if found is contextlib.suppress and manager.of_nothing:
        return False
    if isinstance(by, type):
        return type(by).__call__ is not type.__call__ or _exit_may_swallow(by)
    if isinstance(by, FunctionType) and by.__code__ is _HELPER:
        cells = dict(zip(by.__code__.co_freevars, by.__closure__ or ()))
        return _generator_may_swallow(cells["func"].cell_contents, depth) if "func" in cells else True
    return True


def _exit_may_swallow(cls: type) -> bool:
    """Return whether the class's `__exit__` may return a true value, by its code or that of a class it hands on to."""
    for base in cls.__mro__:
        if "__exit__" in vars(base):
            exits = vars(base)["__exit__"]
            if not isinstance(exits, FunctionType):
                return True
            returned = _returned(exits.__code__)
            if returned is not _Returned.WHAT_SUPER_DOES:
                return returned is _Returned.ANYTHING
    return True


class _Returned(enum.Enum):
    """What a function returns."""

    NOTHING = "false constants alone"
    WHAT_SUPER_DOES = "these, or what the next class's `__exit__` returns"
    ANYTHING = "anything"


@functools.lru_cache(maxsize=512)
def _returned(code: CodeType) -> _Returned:
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE):
        return _Returned.ANYTHING
    instructions = instructions_of(code)
    found = _Returned.NOTHING
    for place, instruction in enumerate(instructions):
        if instruction.opname == "RETURN_CONST" and not instruction.argval:
            continue
        if instruction.opname in ("RETURN_CONST", "RETURN_VALUE"):
            chain = [] if instruction.is_jump_target else _expression(instructions, place)
            if _is_of_super(chain):
                found = _Returned.WHAT_SUPER_DOES
            elif len(chain) != 1 or chain[0].opname != "LOAD_CONST" or chain[0].argval:
                return _Returned.ANYTHING
    return found


def _is_of_super(chain: Sequence[dis.Instruction]) -> bool:
    """Return whether this is `super().__exit__(...)`."""
    names = [i.argval for i in chain if i.opname in (*_NAMES, *_ATTRIBUTES, "LOAD_SUPER_ATTR")]
    return names[:1] == ["super"] and names.count("__exit__") == 1 and chain[-1].opname.startswith("CALL")


def _generator_may_swallow(function: Any, depth: int) -> bool:
    """Return whether a generator that makes a manager may go on behind an exception that is thrown into its `yield`."""
    if not isinstance(function, FunctionType) or not function.__code__.co_flags & inspect.CO_GENERATOR:
        return True
    code = function.__code__
    if any(i.opname in ("YIELD_FROM", "GET_YIELD_FROM_ITER", "SEND") for i in instructions_of(code)):
        return True  # the generator that it yields from may catch it
    cells = dict(zip(code.co_freevars, function.__closure__ or ()))
    closure = {name: cell.cell_contents for name, cell in cells.items() if cell != CellType()}
    never = _never_taken(code, _look(closure, function.__globals__), depth + 1)
    instructions = instructions_of(code)
    ways = flow(code)
    caught = flow_of_exceptions(code)
    queue = [place for place, i in enumerate(instructions) if i.opname == "YIELD_VALUE"]
    queue = [target for place in queue for target in caught[place]]
    seen = set(queue)
    for place in queue:
        if instructions[place].opname.startswith(("RETURN_", "YIELD_")):
            return True
        reached = (*(ways[place][:1] if place in never else ways[place]), *caught[place])
        queue += (new := [n for n in reached if n not in seen])
        seen.update(new)
    return False
