"""Which files beside a script it imports, as its text says, without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

MOST_FILES = 2000


def imported(folder: Path, first: Path) -> tuple[Path, ...]:
    """Return `first` and the files in `folder` that it imports, directly or not; MOST_FILES at most.

    `folder` is one that Python looks through. An import that may fail, in a `try` with an `except`, does not count. A file that
    cannot be read or is no Python imports nothing.
    """
    found = {first: None}
    left = [first]
    while left and len(found) < MOST_FILES:
        for path in _imports(folder, left.pop()):
            if path not in found and path.is_relative_to(folder):
                found[path] = None
                left.append(path)
    return tuple(found)[:MOST_FILES]


def module_file(folder: Path, name: str) -> Path | None:
    """Return the file that `python -m name` runs; None if it is not in the folder."""
    below = folder.joinpath(*name.split("."))
    candidates = (below.with_name(f"{below.name}.py"), below / "__main__.py")
    return next((path for path in candidates if path.is_file()), None)


def _imports(folder: Path, path: Path) -> Iterator[Path]:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for node in _certain(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(folder, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            base = folder if not node.level else _up(path, node.level)
            module = node.module.split(".") if node.module else []
            yield from _files(base, module)
            for alias in node.names:
                yield from _files(base, [*module, alias.name])


def _up(path: Path, level: int) -> Path:
    return path.parents[min(level, len(path.parents)) - 1]


def _certain(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes except those inside a `try` that handles an exception."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not (isinstance(child, ast.Try) and child.handlers):
            yield from _certain(child)


def _files(base: Path, parts: list[str]) -> Iterator[Path]:
    """Yield the files of a module and of the packages that it is in, if they exist."""
    below = base
    for number, part in enumerate(parts, 1):
        below = below / part
        if (package := below / "__init__.py").is_file():
            yield package
        elif number == len(parts) and (module := below.with_name(f"{part}.py")).is_file():
            yield module
