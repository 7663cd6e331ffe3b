"""How far something is for which a person waits: a bar with the time left on a terminal. Elsewhere lines say it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from torchrelay.dashboard import words
from torchrelay.protocol.events import MigrationProgressed


@contextmanager
def waiting(console: Console, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that is told how many of `total` are done. What is printed on `console` meanwhile comes above the bar."""
    if not console.is_terminal:
        yield lambda done: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)


@contextmanager
def waiting_for_bytes(console: Console) -> Iterator[Callable[[MigrationProgressed | None], None]]:
    """Yield a function that is told how many bytes of tensors have moved. With None nothing is moving, and there is no bar."""
    if not console.is_terminal:
        yield lambda moving: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", visible=False, text="")

        def how_far(moving: MigrationProgressed | None) -> None:
            if moving is None:
                progress.update(task, visible=False)
            else:
                done = moving.done_bytes
                total = moving.total_bytes
                text = words.how_far(moving)
                progress.update(task, description=moving.phase, completed=done, total=total, text=text, visible=True)

        yield how_far
