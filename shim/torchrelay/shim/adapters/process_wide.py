"""What torch and `logging` keep for the whole process: hooks of all modules and optimizers, modes, handlers and filters of loggers.

Leans on the dictionaries of these hooks in `torch.nn.modules.module` and `torch.optim.optimizer`, on the stacks of modes, and on
`logging.Logger.manager`. Seen on torch 2.13.0; what is missing counts as empty.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

_KEPT = (
    ("torch.nn.modules.module", "_global_forward_pre_hooks"),
    ("torch.nn.modules.module", "_global_forward_hooks"),
    ("torch.nn.modules.module", "_global_backward_pre_hooks"),
    ("torch.nn.modules.module", "_global_backward_hooks"),
    ("torch.nn.modules.module", "_global_parameter_registration_hooks"),
    ("torch.nn.modules.module", "_global_buffer_registration_hooks"),
    ("torch.nn.modules.module", "_global_module_registration_hooks"),
    ("torch.optim.optimizer", "_global_optimizer_pre_hooks"),
    ("torch.optim.optimizer", "_global_optimizer_post_hooks"),
)


def hooks() -> Iterator[tuple[str, dict[int, Any]]]:
    """Yield where hooks are kept that hold for all, and which ones, by their numbers."""
    for module, name in _KEPT:
        found = getattr(sys.modules.get(module), name, None)
        if found:
            yield name, found


def put_hooks(name: str, wanted: dict[int, Any]) -> None:
    """Let these be the hooks that are kept by that name."""
    for module, kept in _KEPT:
        if kept == name:
            found = getattr(sys.modules[module], name)
            found.clear()
            found.update(wanted)


def next_number() -> int:
    """Return the number that a new hook gets, which is nobody else's."""
    return int(RemovableHandle({}).id)


def modes() -> list[Any]:
    """Return the modes that hold now, the outermost first."""
    functions = getattr(torch.overrides, "_get_current_function_mode_stack", None)
    dispatched = getattr(sys.modules.get("torch.utils._python_dispatch"), "_get_current_dispatch_mode_stack", None)
    return [mode for stack in (functions, dispatched) if stack is not None for mode in stack()]


class Loggers:
    """Handlers and filters that loggers have, by the logger's name. They are looked for again where there are more of either."""

    def __init__(self) -> None:
        self._seen: tuple[int, int] = (-1, -1)
        self._loggers: list[logging.Logger] = []

    def held(self) -> Iterator[tuple[str, Any]]:
        known = logging.Logger.manager.loggerDict
        seen = len(known), len(logging._handlerList)  # type: ignore[attr-defined]
        if seen != self._seen:
            self._seen = seen
            found = [each for each in [*known.values()] if isinstance(each, logging.Logger)]
            self._loggers = [each for each in (logging.root, *found) if not all(map(_is_pythons, _held_by(each)))]
        for each in self._loggers:
            for held in _held_by(each):
                yield each.name, held


def _held_by(logger: logging.Logger) -> Iterator[Any]:
    yield from (*logger.handlers, *logger.filters)
    for handler in logger.handlers:
        yield from handler.filters


def _is_pythons(held: Any) -> bool:
    return str(type(held).__module__).partition(".")[0] in sys.stdlib_module_names
