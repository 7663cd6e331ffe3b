"""Show torch.compile the script's functions as Python compiled them: it refuses names that it does not know.

Dynamo reads a function's instructions with `bytecode_transformation.cleaned_instructions`, for the functions that it is given and
for those that it inlines. All else that it takes from a code object is the same with and without our calls. What it has compiled is
told by `torch._dynamo.utils.counters`, which counts `frames`. Under a `TorchFunctionMode` compiled code is compiled anew, with
other borders between its graphs, so it may round differently.

Code with sizes that vary is compiled anew for all sizes, and rounds otherwise than code that was compiled for one:
`torch._dynamo.pgo._CODE_STATE` has for each function what it was seen to be called with. Seen on torch 2.13.
"""

from __future__ import annotations

import functools
import sys
from types import CodeType, ModuleType
from typing import Any

from torchrelay.shim.script.sites import plain_code

MODULE = "torch._dynamo.bytecode_transformation"


def compilations() -> int:
    """Return how many functions were compiled, or tried, in this process."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    return sum(utils.counters["frames"].values()) if utils is not None else 0


def compiled_for_all_sizes() -> tuple[str, int, str]:
    """Return file, line and name of a function that was compiled for sizes, or numbers, that vary; "", 0, "" if there is none."""
    pgo: Any = sys.modules.get("torch._dynamo.pgo")
    for code, state in (getattr(pgo, "_CODE_STATE", None) or {}).items():
        if any(_varies(entry, pgo.auto_dynamic) for entry in state.automatic_dynamic.values()):
            return code.filename, code.firstlineno, code.name
    return "", 0, ""


def _varies(entry: Any, token: Any) -> bool:
    """Return whether a size or a number was seen to vary.

    `token` stands in the entry for what varies, and for what is not there: the sizes of a number, the number of a tensor.
    """
    if not isinstance(entry.size, tuple):
        return entry.size is token and entry.scalar is token
    strides = entry.stride if isinstance(entry.stride, tuple) else ()
    return any(found is token for found in (*entry.size, *strides))


def show_plain_code(module: ModuleType) -> None:
    """Patch `MODULE`, which was just imported. Raises AttributeError for a torch that is built differently."""
    original = module.cleaned_instructions

    @functools.wraps(original)
    def cleaned_instructions(code: CodeType, *args: Any, **options: Any) -> Any:
        return original(plain_code(code) or code, *args, **options)

    module.cleaned_instructions = cleaned_instructions  # type: ignore[attr-defined]  # a module's
