"""What the way in needs of the runtime behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, Protocol


class LoopHooks(Protocol):
    """What instrumented code calls, as `builtins.__torchrelay__`."""

    def enter(self, site: str) -> int:
        """Note that the iterable of a `for` is about to be evaluated, or that a `while` begins."""

    def loop(self, site: str, token: int, iterable: Iterable[Any]) -> Iterable[Any]:
        """Return what a `for` iterates over; `token` is what `enter` returned."""

    def tick(self, site: str) -> None:
        """Note the head of a `while`'s body."""

    def again(self, site: str) -> bool:
        """Return whether a `while` goes on without a look at its condition: it has gone back to behind that."""

    def rewound(self, site: str) -> bool:
        """Return, in the except clause around a body, True to go on with the loop, False to let the exception through."""

    def next(self, iterator: Any, *default: Any) -> Any:
        """Return the next item, in place of the builtin."""

    def generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a framework's generator function that draws batches. Used as a decorator."""


class RuntimeInterface(Protocol):
    """The shim's runtime, as the code that gets into the script sees it."""

    @property
    def hooks(self) -> LoopHooks: ...

    @property
    def is_spare(self) -> bool:
        """Return whether to park before the script begins."""

    def park(self) -> None:
        """Block until this spare is given a rank."""

    def begin_set_up(self) -> None:
        """Begin set-up, right before the script: what it learns from outside is recorded from here on, or given again."""

    def torch_imported(self) -> None: ...

    def numpy_imported(self, module: ModuleType) -> None:
        """Note that numpy.random was imported, which is `module`."""

    def part_imported(self, module: ModuleType) -> None:
        """Note that a part of torch was imported, which scripts import when they need it."""

    def accelerate_imported(self, module: ModuleType) -> None:
        """Note that accelerate's loaders were imported, which are `module`."""

    def disable(self, reason: str) -> None:
        """Let the script run unprotected from here on."""

    def finish(self, failure: BaseException | None) -> None:
        """Note the script's end, with `failure` if it failed (its traceback is printed by then). May wait."""
