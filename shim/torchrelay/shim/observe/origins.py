"""Where in the script a thing is made: for reports, which a user can act on only if they name a line.

Read from the source, when a report is written; what cannot be found has no line, and is named all the same.
"""

from __future__ import annotations

import ast
import functools
import inspect
import os
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch

from torchrelay.shim.capture.state.host_state import HostState, Inside
from torchrelay.shim.capture.values.base_types import file_of
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.script.sites import INSTRUMENTED_FILES, PACKAGES


class SourcePlace(NamedTuple):
    file: str
    line: int


NOWHERE = SourcePlace("", 0)
_TORCH = os.path.dirname(torch.__file__)


def call_site(frame: FrameType | None) -> SourcePlace:
    """Return the script's own line that a call came from, or the first one outside of torch."""
    first = NOWHERE
    while frame is not None:
        file = frame.f_code.co_filename
        if file in INSTRUMENTED_FILES and file not in PACKAGES:
            return SourcePlace(file, frame.f_lineno)
        if first is NOWHERE and not file.startswith(_TORCH) and "torchrelay" not in file:
            first = SourcePlace(file, frame.f_lineno)
        frame = frame.f_back
    return first


def where_made(state: HostState, parent: int, key: Any) -> SourcePlace:
    """Return the last line that binds what hangs below node `parent` by `key`, or what holds it."""
    while parent >= 0:
        node = state.nodes[parent]
        while type(key) is Inside:
            key = key.key
        if isinstance(key, str):
            found = _binding(node.kind, node.obj, node.key, key)
            if found is not None:
                return found
        parent = node.parent
        key = node.key
    return NOWHERE


def _binding(kind: Kind, obj: Any, key: Any, name: str) -> SourcePlace | None:
    if kind is Kind.FRAME:
        return _last(obj.f_code.co_filename, name, obj.f_code.co_firstlineno)
    if kind is Kind.GLOBALS:
        file = obj.get("__file__") or file_of(sys.modules.get(str(key)))
        return _last(file, name, 0) if file else None
    if kind is Kind.FUNCTION:
        return of_function(obj)
    module = sys.modules.get((obj if kind is Kind.CLASS else type(obj)).__module__)
    file = file_of(module)
    return _last(file, f".{name}", 0) if file in INSTRUMENTED_FILES else None


def _last(file: str, name: str, function_line: int) -> SourcePlace | None:
    lines = _bindings(file).get((function_line, name))
    return SourcePlace(file, lines[-1]) if lines else None


@functools.lru_cache(maxsize=32)
def _bindings(file: str) -> dict[tuple[int, str], list[int]]:
    """Return lines by (first line of the function, or 0 for a module's own) and name; attributes as `.name`, of the whole file."""
    try:
        with open(file, "rb") as source:
            tree = ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[tuple[int, str], list[int]] = {}
    for function, name, line in _walk(tree, 0):
        found.setdefault((function, name), []).append(line)
    return found


def _walk(node: ast.AST, function: int) -> Iterator[tuple[int, str, int]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            # A code object begins at its first decorator.
            yield from _walk(child, min([child.lineno, *(d.lineno for d in child.decorator_list)]))
            continue
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield function, child.id, child.lineno
        elif isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store):
            yield 0, f".{child.attr}", child.lineno
        yield from _walk(child, function)


def of_function(function: Any) -> SourcePlace:
    """Return where a function is defined."""
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    return SourcePlace(code.co_filename, code.co_firstlineno) if code is not None else NOWHERE
