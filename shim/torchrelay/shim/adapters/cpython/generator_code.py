"""Tell from a generator's instructions what its code does with the items that it draws.

Leans on the names of instructions in `dis`. Seen on CPython 3.10 to 3.13. Of instructions that it does not know it says nothing.
"""

from __future__ import annotations

import dis
import functools
from types import CodeType

_NOTHING = frozenset({"NOP", "RESUME", "CACHE", "EXTENDED_ARG"})
_STORE = frozenset({"STORE_FAST", "STORE_DEREF"})
_LOAD = frozenset({"LOAD_FAST", "LOAD_DEREF", "LOAD_FAST_BORROW"})


@functools.lru_cache(maxsize=256)
def only_passes_on(code: CodeType) -> bool:
    """Return whether each loop of the generator yields its items as they are, and looks at none: `for x in source: yield x`."""
    instructions = [i for i in dis.get_instructions(code) if i.opname not in _NOTHING]
    loops = [at for at, i in enumerate(instructions) if i.opname == "FOR_ITER"]
    return bool(loops) and all(_yields_it(instructions[at + 1 : at + 4]) for at in loops)


def _yields_it(behind: list[dis.Instruction]) -> bool:
    if behind and behind[0].opname == "STORE_FAST_LOAD_FAST":  # of CPython 3.13
        stored, loaded = behind[0].argval
        return bool(stored == loaded and behind[1].opname == "YIELD_VALUE")
    store, load, last = behind
    is_it = store.opname in _STORE and load.opname in _LOAD and store.argval == load.argval
    return bool(is_it and last.opname == "YIELD_VALUE")
