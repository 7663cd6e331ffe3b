"""torch.compile is shown the script's functions as Python compiled them: it refuses names that it does not know.

Dynamo reads a function's instructions with `bytecode_transformation.cleaned_instructions`, for the functions that it is
given and for those that it inlines; what else it takes from a code object is the same with and without our calls.
What it has compiled is told by `torch._dynamo.utils.counters`, which counts `frames`: compiled code is compiled anew under
a `TorchFunctionMode`, with other borders between its graphs, so it may round differently. Seen on torch 2.13.
"""

from __future__ import annotations

import functools
import sys
from types import CodeType, ModuleType
from typing import Any

from torchrelay.shim.script.sites import plain_code

MODULE = "torch._dynamo.bytecode_transformation"


def compilations() -> int:
    """How many functions were compiled, or tried, in this process."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    return sum(utils.counters["frames"].values()) if utils is not None else 0


def show_plain_code(module: ModuleType) -> None:
    """Patches `MODULE`, just imported. Raises AttributeError for a torch that is built differently."""
    original = module.cleaned_instructions

    @functools.wraps(original)
    def cleaned_instructions(code: CodeType, *args: Any, **options: Any) -> Any:
        return original(plain_code(code) or code, *args, **options)

    module.cleaned_instructions = cleaned_instructions  # type: ignore[attr-defined]  # a module's
