"""What the way in needs of the runtime behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, Protocol


class LoopHooks(Protocol):
    """What instrumented code calls, as `builtins.__torchrelay__`."""

    def enter(self, site: str) -> int:
        """Just before the iterable of a `for` is evaluated, or before a `while`."""

    def loop(self, site: str, token: int, iterable: Iterable[Any]) -> Iterable[Any]:
        """What a `for` iterates over; `token` is what `enter` returned."""

    def tick(self, site: str) -> None:
        """At the head of a `while`'s body."""

    def rewound(self, site: str) -> bool:
        """In the except clause around a body: True goes on with the loop, False lets the exception through."""

    def next(self, iterator: Any, *default: Any) -> Any:
        """Stands for the builtin."""

    def generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator of a framework's generator function that draws batches."""


class RuntimeInterface(Protocol):
    """The shim's runtime, as the code that gets into the script sees it."""

    @property
    def hooks(self) -> LoopHooks: ...

    @property
    def is_spare(self) -> bool:
        """Whether to park before the script begins."""

    def park(self) -> None:
        """Blocks until this spare is given a rank."""

    def begin_set_up(self) -> None:
        """Right before the script: what it learns from outside is recorded from here on, or given again."""

    def torch_imported(self) -> None: ...

    def numpy_imported(self, module: ModuleType) -> None:
        """`module`: numpy.random."""

    def part_imported(self, module: ModuleType) -> None:
        """A part of torch that is imported when it is needed is there."""

    def accelerate_imported(self, module: ModuleType) -> None:
        """`module`: accelerate's loaders."""

    def disable(self, reason: str) -> None:
        """The script runs unprotected from here on."""

    def finish(self, failure: BaseException | None) -> None:
        """The script has ended, with `failure` if it is one (its traceback is printed by then); may wait."""
