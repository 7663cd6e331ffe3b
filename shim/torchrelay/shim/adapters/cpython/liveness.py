"""Find which local variables of a running frame can still be read: the others are leftovers of the iteration before.

It is a backward data flow over the bytecode. After a rewind a rewritten `for` yields the same item again. So the way on which it
would end there is not taken, and keeps no variable of the iteration before alive. Of some variables only attributes are read
(`outputs.loss`), or nothing at all (`del outputs`): the rest of their content does not matter. Seen on 3.10 to 3.13; opcodes are
told by their names, and an unknown one that names a local counts as a read. Variables that are shared with other functions count
as live at all times, but for those that only comprehensions read: these are done with where they are made. Code that uses `locals`,
`vars`, `dir`, `eval` or `exec` may read every variable there. Every variable counts as live at all times where such a function is
kept for later, and in a module that has `eval` or `exec`: what that defines may read the module's variables whenever it is called.
"""

from __future__ import annotations

import bisect
import dis
import functools
import sys
from collections.abc import Iterable, Mapping
from types import CodeType, FrameType, MappingProxyType
from typing import NamedTuple

from torchrelay.shim.adapters.cpython import with_blocks
from torchrelay.shim.adapters.cpython.bytecode_flow import flow, handlers, instructions_of

_READ_ANY = frozenset({"locals", "vars", "eval", "exec", "dir"})
_OF_AN_OBJECT = frozenset({"vars", "dir"})
"""With an argument these functions read only the argument: `vars(args)`, as it is written into checkpoints."""
_DEFINE = frozenset({"eval", "exec"})
_BY_NAME = frozenset({"eval", "exec", "globals"})
_OF_ATTRIBUTES = frozenset(
    {"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR", "LOAD_SUPER_ATTR", "IMPORT_NAME", "IMPORT_FROM"}
)
_BY_NAME_OR_CELL = frozenset(
    {
        "STORE_NAME",
        "LOAD_NAME",
        "DELETE_NAME",
        "STORE_DEREF",
        "LOAD_DEREF",
        "DELETE_DEREF",
        "LOAD_CLOSURE",
        "LOAD_CLASSDEREF",
    }
    | {"LOAD_FROM_DICT_OR_DEREF"}
)
_DONE_AT_ONCE = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
"""Code that is called where it is made. The generator of a <genexpr> is state by itself, and has its variables."""
_REWOUND = "rewound"
"""The name that handlers of rewritten loops read (`instrument/rewrite.py`)."""
_BETWEEN = frozenset(
    {
        "POP_EXCEPT",
        "NOP",
        "NOT_TAKEN",
        "EXTENDED_ARG",
        "JUMP_FORWARD",
        "JUMP_ABSOLUTE",
        "JUMP_BACKWARD",
        "JUMP_BACKWARD_NO_INTERRUPT",
    }
)
_BEFORE_CALL = frozenset({"PUSH_NULL", "PRECALL", "EXTENDED_ARG"})


def live_locals(frame: FrameType) -> frozenset[str] | None:
    """Return the names that may be read after the instruction that the frame is in; None if all have to be taken for live."""
    return answer(frame).live


class CodeLiveness(NamedTuple):
    code: CodeType
    live: frozenset[str] | None
    """What `live_locals` returns."""
    in_order: tuple[str, ...] | None
    """The live names in the order of the code, but for names that begin with two underscores."""
    partly: Mapping[str, tuple[str, ...]]
    """For variables of a function of which only attributes may be read, which ones. `size()`: a method that is called."""
    dead: frozenset[str]
    """Names that the code of a module writes, and that neither it nor its functions may read after where the frame is; empty for
    other code."""


def answer(frame: FrameType) -> CodeLiveness:
    code = frame.f_code
    never = with_blocks.never_taken(frame)
    key = (id(code), frame.f_lasti, never)  # hashing a code object looks at all that is in it
    known = _answers.get(key)
    if known is None or known.code is not code:
        needs = _needed_after(code, frame.f_lasti, never)
        dead = frozenset[str]()
        live = None if needs is None else frozenset(map(_name, needs))
        if live is not None and code.co_name == "<module>" and not _has_functions_that_read_any(code):
            dead = frozenset(code.co_names) - live - read_by_functions(code)
        in_order = None if live is None else _in_order(code, live)
        known = _answers[key] = CodeLiveness(code, live, in_order, _partly(needs or ()), dead)
    return known


def _in_order(code: CodeType, names: frozenset[str]) -> tuple[str, ...]:
    own = dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars))
    return tuple(name for name in own if name in names and not name.startswith("__"))


def _name(need: str) -> str:
    """Return the variable's name from a need.

    A need is the name, `name:attribute`, `name:method()`, or `name:` where the variable only has to be there.
    """
    return need.partition(":")[0]


def _partly(needs: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    whole = set()
    for need in sorted(needs):
        name, colon, part = need.partition(":")
        if not colon:
            whole.add(name)
        found.setdefault(name, []).extend([part] if part else [])
    return MappingProxyType({name: tuple(parts) for name, parts in found.items() if name not in whole})


_answers: dict[tuple[int, int, frozenset[int]], CodeLiveness] = {}


def _needed_after(code: CodeType, offset: int, never: frozenset[int]) -> frozenset[str] | None:
    """Return the needs, as `_name` describes them; None where every variable may be read. `never`: jumps that are not taken."""
    if _may_read_any_later(code):
        return None
    live = _live_in(code, never)
    instructions = instructions_of(code)
    position = sum(instruction.offset <= offset for instruction in instructions) - 1  # it may be in an inline cache
    if position < 0:
        return None
    names = frozenset(code.co_freevars) | _kept_by_functions(code)
    for successor in _successors(code, never)[position]:
        names |= live[successor]
    for jump, (asks, goes_on) in _rewinds(code).items():
        if asks <= position <= jump:  # it is about to go on there
            names |= live[goes_on]
    return names | _live_in_handlers(code, position, live)


def _effect(instruction: dis.Instruction, following: dis.Instruction | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what the instruction needs of locals, then the locals that it writes."""
    name = instruction.opname
    value = instruction.argval
    if "FAST" not in name and name not in _BY_NAME_OR_CELL:
        return (), ()
    names = tuple(v for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, str))
    if name in ("DELETE_FAST", "DELETE_NAME", "DELETE_DEREF"):
        return tuple(f"{n}:" for n in names), names
    if name in ("STORE_FAST", "STORE_NAME", "STORE_DEREF", "STORE_FAST_MAYBE_NULL"):
        return (), names
    if name == "STORE_FAST_STORE_FAST":
        return (), names
    if name == "STORE_FAST_LOAD_FAST":
        return tuple(n for n in names[1:] if n != names[0]), names[:1]
    part = _part_read(following) if following is not None else ""
    return ((*names[:-1], f"{names[-1]}:{part}") if part and names else names), ()


def _part_read(instruction: dis.Instruction) -> str:
    """Return what the instruction takes of the object that was loaded before it; empty where the object is used otherwise."""
    if instruction.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
        return ""
    is_method = instruction.opname == "LOAD_METHOD"
    if sys.version_info >= (3, 12):
        is_method = bool((instruction.arg or 0) & 1)
    return f"{instruction.argval}()" if is_method else str(instruction.argval)


@functools.lru_cache(maxsize=512)
def _kept_by_functions(code: CodeType) -> frozenset[str]:
    """Return the variables that functions within share, which may be called at any time."""
    kept: frozenset[str] = frozenset()
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            names = _kept_by_functions(inner) if inner.co_name in _DONE_AT_ONCE else frozenset(inner.co_freevars)
            kept |= names
    return kept & {*code.co_cellvars, *code.co_freevars}


@functools.lru_cache(maxsize=512)
def _uses(code: CodeType, of: frozenset[str]) -> frozenset[int]:
    """Return which instructions use one of these functions as a variable, in a way that reads any variable.

    `model.eval()` is no `eval`.
    """
    if not of & set(code.co_names):
        return frozenset()
    instructions = instructions_of(code)
    return frozenset(
        place
        for place, instruction in enumerate(instructions)
        if type(instruction.argval) is str
        and instruction.argval in of
        and instruction.opname not in _OF_ATTRIBUTES
        and not (instruction.argval in _OF_AN_OBJECT and _is_given_an_argument(instructions, place))
    )


def _is_given_an_argument(instructions: tuple[dis.Instruction, ...], function: int) -> bool:
    """Return whether the function loaded there is neither called nor stored at once: something is put on the stack behind it."""
    following = next(i for i in instructions[function + 1 :] if i.opname not in _BEFORE_CALL)
    return following.opname.startswith("LOAD_")


def _may_read_any(code: CodeType, by: frozenset[str]) -> bool:
    return bool(_uses(code, by))


@functools.lru_cache(maxsize=512)
def _may_read_any_later(code: CodeType) -> bool:
    """Return whether the code may read every variable at other places than where it names a function that does so."""
    if not _READ_ANY & set(code.co_names):
        return False
    if code.co_name == "<module>" and _may_read_any(code, _DEFINE):
        return True
    instructions = instructions_of(code)
    return any(instructions[place + 1].opname.startswith("STORE_") for place in _uses(code, _READ_ANY))


def _has_functions_that_read_any(code: CodeType) -> bool:
    """Return whether functions of a module may read its variables by names that are not in their code."""
    return any(
        _may_read_any(constant, _BY_NAME) or _has_functions_that_read_any(constant)
        for constant in code.co_consts
        if isinstance(constant, CodeType)
    )


@functools.lru_cache(maxsize=512)
def _rewinds(code: CodeType) -> dict[int, tuple[int, int]]:
    """Return, for each jump by which our handler lets a `for` go on, where the handler asks for it, and where the loop goes on."""
    instructions = instructions_of(code)
    ways = flow(code)
    conditions = [n for n, i in enumerate(instructions) if i.opname.startswith("POP_JUMP")]
    found = {}
    for asks in (n for n, i in enumerate(instructions) if i.argval == _REWOUND and i.opname in _OF_ATTRIBUTES):
        for jump in conditions[bisect.bisect(conditions, asks) :][:1]:
            goes_on = next((n for n in ways[jump] if _goes_on_in_for(instructions, ways, n)), None)
            if goes_on is not None:
                found[jump] = (asks, goes_on)
    return found


@functools.lru_cache(maxsize=512)
def _successors(code: CodeType, never: frozenset[int]) -> tuple[tuple[int, ...], ...]:
    found = [
        ways[:1] if place in never else ways for place, ways in enumerate(flow(code))
    ]  # a jump's other way comes first
    for jump, (_, goes_on) in _rewinds(code).items():
        found[jump] = tuple(n for n in found[jump] if n != goes_on)
    return tuple(found)


def _goes_on_in_for(instructions: tuple[dis.Instruction, ...], ways: tuple[tuple[int, ...], ...], place: int) -> bool:
    while instructions[place].opname in _BETWEEN and len(ways[place]) == 1:
        place = ways[place][0]
    return instructions[place].opname == "FOR_ITER"


def _live_in_handlers(code: CodeType, position: int, live: tuple[frozenset[str], ...]) -> frozenset[str]:
    instructions = instructions_of(code)
    offset = instructions[position].offset
    names: frozenset[str] = frozenset()
    for start, end, target in handlers(code):
        if start <= offset < end:
            place = next((n for n, i in enumerate(instructions) if i.offset == target), None)
            if place is not None:
                names |= live[place]
    return names


@functools.lru_cache(maxsize=512)
def _live_in(code: CodeType, never: frozenset[int]) -> tuple[frozenset[str], ...]:
    """Return for each instruction which variables may be needed from it on before they are written."""
    instructions = instructions_of(code)
    successors = _successors(code, never)
    effects = [
        (frozenset(reads), frozenset(writes)) for reads, writes in map(_effect, instructions, (*instructions[1:], None))
    ]
    if _may_read_any(code, _READ_ANY):
        every = frozenset(code.co_varnames) | frozenset(code.co_names)
        uses = _uses(code, _READ_ANY)
        effects = [(every, w) if place in uses else (r, w) for place, (r, w) in enumerate(effects)]
    places = {instruction.offset: place for place, instruction in enumerate(instructions)}
    leads_to: list[list[int]] = [[] for _ in instructions]
    for start, end, target in handlers(code):
        for place, instruction in enumerate(instructions):
            if start <= instruction.offset < end and target in places:
                leads_to[place].append(places[target])
    live: list[frozenset[str]] = [frozenset()] * len(instructions)
    changed = True
    while changed:
        changed = False
        for place in range(len(instructions) - 1, -1, -1):
            after: frozenset[str] = frozenset()
            for successor in successors[place]:
                after |= live[successor]
            reads, writes = effects[place]
            names = reads | (frozenset(n for n in after if _name(n) not in writes) if writes else after)
            for handler in leads_to[place]:
                names |= live[handler]
            if names != live[place]:
                live[place] = names
                changed = True
    return tuple(live)


@functools.lru_cache(maxsize=64)
def read_by_functions(code: CodeType) -> frozenset[str]:
    """Return the global names that functions and classes defined in a module may read, at any time."""
    names: set[str] = set()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names.update(constant.co_names)
            names.update(read_by_functions(constant))
    return frozenset(names)
