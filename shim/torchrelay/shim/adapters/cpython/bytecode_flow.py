"""Read the flow of control from the bytecode of a function. Seen on 3.10 to 3.13; opcodes are told by their names."""

from __future__ import annotations

import dis
import functools
import sys
from types import CodeType

_NO_FALL_THROUGH = frozenset(
    {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD"}
    | {"JUMP_BACKWARD_NO_INTERRUPT", "JUMP_NO_INTERRUPT"}
)


@functools.lru_cache(maxsize=512)
def instructions_of(code: CodeType) -> tuple[dis.Instruction, ...]:
    """Return the instructions of a code object. What is told below are places among these."""
    return tuple(dis.get_instructions(code))


@functools.lru_cache(maxsize=512)
def flow(code: CodeType) -> tuple[tuple[int, ...], ...]:
    """Return for each instruction where control may go next, but for exceptions; before 3.11 a block leads to its handler."""
    instructions = instructions_of(code)
    places = {instruction.offset: place for place, instruction in enumerate(instructions)}
    jumps = set(dis.hasjrel) | set(dis.hasjabs)
    found = []
    for place, instruction in enumerate(instructions):
        following = []
        if instruction.opname not in _NO_FALL_THROUGH and place + 1 < len(instructions):
            following.append(place + 1)
        if instruction.opcode in jumps or instruction.opname in ("SETUP_FINALLY", "SETUP_WITH"):
            target = places.get(instruction.argval)
            if target is not None:
                following.append(target)
        found.append(tuple(following))
    return tuple(found)


@functools.lru_cache(maxsize=512)
def handlers(code: CodeType) -> tuple[tuple[int, int, int], ...]:
    """Return first offset, last offset and handler's offset of each protected range. Before 3.11 jumps tell them."""
    if sys.version_info < (3, 11):
        return ()
    entries = dis._parse_exception_table(code)  # type: ignore[attr-defined]  # private
    return tuple((e.start, e.end, e.target) for e in entries)


@functools.lru_cache(maxsize=512)
def flow_of_exceptions(code: CodeType) -> tuple[tuple[int, ...], ...]:
    """Return for each instruction where an exception there may lead. Before 3.11 any handler counts."""
    instructions = instructions_of(code)
    places = {instruction.offset: place for place, instruction in enumerate(instructions)}
    if sys.version_info < (3, 11):
        anywhere = tuple(places[i.argval] for i in instructions if i.opname in ("SETUP_FINALLY", "SETUP_WITH"))
        return (anywhere,) * len(instructions)
    ranges = [(start, end, places[target]) for start, end, target in handlers(code)]
    return tuple(tuple(target for start, end, target in ranges if start <= i.offset < end) for i in instructions)
