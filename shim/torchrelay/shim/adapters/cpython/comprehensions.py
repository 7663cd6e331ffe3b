"""Tell whether a frame stands within a comprehension or a generator expression.

Up to Python 3.11 each is a function of its own. From 3.12 on, those of lists, sets and dicts are part of the function around them:
told from the instruction that puts an item into what is being made. It reaches below the iterators of the comprehension, and so
tells their number. A long literal, or one with `*`, is made by the same instruction, which reaches below nothing there. Seen on
CPython 3.10 to 3.13.
"""

from __future__ import annotations

import dis
import functools
from types import CodeType, FrameType

_FUNCTIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
_PUTS_ITEM = frozenset({"LIST_APPEND", "SET_ADD", "MAP_ADD"})


def comprehension_around(frame: FrameType | None, outermost: FrameType) -> FrameType | None:
    """Return the innermost frame that stands in a comprehension, from `frame` up to `outermost`; None where there is none."""
    while frame is not None:
        if frame.f_code.co_name in _FUNCTIONS or any(
            begin <= frame.f_lasti < end for begin, end in _inlined(frame.f_code)
        ):
            return frame
        if frame is outermost:
            return None
        frame = frame.f_back
    return None


@functools.lru_cache(maxsize=512)
def _inlined(code: CodeType) -> tuple[tuple[int, int], ...]:
    """Return from where to where the comprehensions reach that are part of this code."""
    if code.co_name in _FUNCTIONS:
        return ()
    found = []
    loops: list[int] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname == "FOR_ITER":
            loops.append(instruction.offset)
        elif instruction.opname == "END_FOR" and loops:
            loops.pop()
        elif instruction.opname in _PUTS_ITEM and loops and (below := instruction.arg or 0) > 1:
            found.append((loops[max(1 + len(loops) - below, 0)], instruction.offset))
    return tuple(found)
