"""How far something is for which a person waits: a bar with the time left on a terminal. Elsewhere lines say it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def waiting(console: Console, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield what is to be told how many of `total` are done. What is printed on `console` meanwhile comes above the bar."""
    if not console.is_terminal:
        yield lambda done: None
        return
    columns = (
        TextColumn("torchrelay: {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)
