"""Finds what commands say in their source: each text with its values as words in capitals, so that no page leaves one out.

It reads calls and `raise` statements; of what they call nothing is run.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

MOST_VARIANTS = 6
"""Of one text, which chooses between words."""
UNKNOWN = "…"
_HINT_BEHIND = re.compile(r"(?<=[A-Z])(HINT)$")
"""A hint has a line of its own, or is left out."""


@dataclass(frozen=True)
class Source:
    """A module. Constants of it, its own and those that it imports, and its functions are followed where a text is one."""

    tree: ast.Module
    constants: Mapping[str, str]
    functions: Mapping[str, ast.FunctionDef]
    assigned: Mapping[str, Sequence[ast.expr]] = field(default_factory=dict)
    """Variables of the function that is read, and what it lets them mean, where they are followed."""


def read(path: Path, module: str = "") -> Source:
    """Parse a module. `module`: its name, to be imported for the values of its constants; empty: it has none."""
    tree = ast.parse(path.read_text("utf-8"))
    known = vars(importlib.import_module(module)) if module else {}
    constants = {name: str(value) for name, value in known.items() if isinstance(value, str | int | float)}
    return Source(tree, constants, {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)})


def raised(source: Source, classes: Sequence[str]) -> Iterator[list[str]]:
    """Yield the variants of each error's text, in the order of the file."""
    found = [
        n for n in ast.walk(source.tree) if isinstance(n, ast.Raise) and isinstance(n.exc, ast.Call) and n.exc.args
    ]
    for node in sorted(found, key=lambda n: n.lineno):
        assert isinstance(node.exc, ast.Call)
        if _name(node.exc.func) in classes:
            yield texts(node.exc.args[0], source)


def said(source: Source, calls: Mapping[str, int]) -> Iterator[tuple[str, list[str], str]]:
    """Yield the call, the variants of the text, and the style, of each text that is given to one of these calls.

    The style is the argument behind the text, where it is written there; empty otherwise.

    `calls`: the name (`line` of `narrate.line(...)`) -> which argument is the text.
    """
    found = [n for n in ast.walk(source.tree) if isinstance(n, ast.Call) and len(n.args) > calls.get(_name(n.func), 99)]
    for node in sorted(found, key=lambda n: (n.lineno, n.col_offset)):
        text = node.args[calls[_name(node.func)]]
        if isinstance(text, ast.JoinedStr | ast.IfExp | ast.BinOp) or (
            isinstance(text, ast.Constant) and isinstance(text.value, str) and text.value
        ):
            yield _name(node.func), texts(text, source), _style(node.args[calls[_name(node.func)] + 1 :])


def made(source: Source, calls: Mapping[str, int]) -> Iterator[list[str]]:
    """Yield the variants of each text that is given to one of these calls, also where a variable of the function holds it."""
    for function in (n for n in ast.walk(source.tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)):
        found = [
            n for n in ast.walk(function) if isinstance(n, ast.Call) and len(n.args) > calls.get(_name(n.func), 99)
        ]
        for call in sorted(found, key=lambda n: (n.lineno, n.col_offset)):
            within = replace(source, assigned=dict(_assigned(function.body, call)))
            yield texts(call.args[calls[_name(call.func)]], within)


def _assigned(block: Sequence[ast.stmt], call: ast.Call) -> dict[str, list[ast.expr]]:
    """Return what variables may mean where a call is made: by what stands before it, on its way through branches."""
    known: dict[str, list[ast.expr]] = {}
    for statement in block:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            known[statement.targets[0].id] = [statement.value]
        if statement.lineno <= call.lineno <= (statement.end_lineno or 0):
            for part in _blocks(statement):
                if part and part[0].lineno <= call.lineno <= (part[-1].end_lineno or 0):
                    known |= _assigned(part, call)
            break
        for node in ast.walk(statement):
            if node is not statement and isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                known.setdefault(node.targets[0].id, []).append(node.value)
    return known


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        yield getattr(statement, name, [])
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body


def _style(behind: Sequence[ast.expr]) -> str:
    """Return the style; of one that depends on something, the one that is no success."""
    match behind:
        case [ast.Constant(value=str(style)), *_]:
            return style
        case [ast.IfExp(body=one, orelse=other), *_]:
            return max((_style([one]), _style([other])), key=lambda style: style in ("red", "yellow"))
    return ""


def texts(node: ast.expr, source: Source, depth: int = 0) -> list[str]:
    """Return the variants of a text."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            return [_HINT_BEHIND.sub(r"\n\1", text) for text in _joined([texts(part, source, depth) for part in parts])]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _joined([texts(left, source, depth), texts(right, source, depth)])
        case ast.IfExp(body=one, orelse=other):
            return list(dict.fromkeys((*texts(one, source, depth), *texts(other, source, depth))))[:MOST_VARIANTS]
        case ast.FormattedValue(value=ast.IfExp() as chosen):
            return texts(chosen, source, depth)
        case ast.Name(id=name) if name in source.constants:
            return [source.constants[name]]
        case ast.Name(id=name) if name in source.assigned and depth < 2:
            others = replace(source, assigned={n: v for n, v in source.assigned.items() if n != name})
            values = (texts(value, others, depth + 1) for value in source.assigned[name])
            return list(dict.fromkeys(itertools.chain.from_iterable(values)))[:MOST_VARIANTS]
        case ast.BoolOp(op=ast.Or(), values=values) if source.assigned:
            return list(dict.fromkeys(t for value in values for t in texts(value, source, depth)))[:MOST_VARIANTS]
        case ast.Call(func=ast.Name(id=name)) if name in source.functions and depth < 2:
            returns = [n.value for n in ast.walk(source.functions[name]) if isinstance(n, ast.Return) and n.value]
            return list(dict.fromkeys(t for value in returns for t in texts(value, source, depth + 1)))[:MOST_VARIANTS]
        case ast.FormattedValue(value=ast.Name(id=name) as value) if depth < 2 and _holds_text(
            source.assigned.get(name, ())
        ):
            return texts(value, source, depth)
        case ast.FormattedValue(value=value):
            return [_placeholder(value, source)]
    return [_placeholder(node, source)]


def _holds_text(values: Sequence[ast.expr]) -> bool:
    """Return whether all that a variable is given is written there, and may so be read in its place."""
    return bool(values) and all(
        isinstance(value, ast.JoinedStr | ast.IfExp)
        or (isinstance(value, ast.Constant) and isinstance(value.value, str))
        for value in values
    )


def _joined(parts: Sequence[list[str]]) -> list[str]:
    return ["".join(chosen) for chosen in itertools.islice(itertools.product(*parts), MOST_VARIANTS)]


def _placeholder(node: ast.expr, source: Source) -> str:
    """Return a value's name in capitals: `given.workdir` is WORKDIR."""
    match node:
        case ast.Constant(value=value):
            return str(value)
        case ast.Name(id=name) if name in source.constants:
            return source.constants[name]
        case ast.Name(id="e" | "problem" | "error"):
            return "WHY"
        case ast.Attribute(value=ast.Name(id="e"), attr=_):
            return "WHY"
        case ast.Name(id=name):
            return name.strip("_").upper()
        case ast.Attribute(attr=name):
            return name.strip("_").upper()
        case ast.BinOp(left=left, op=ast.RShift(), right=ast.Constant(value=int(bits))):
            found = _placeholder(left, source)  # bytes, as another unit
            return str(int(found) >> bits) if found.isdigit() else found
        case ast.BinOp(left=left):
            return _placeholder(left, source)
        case ast.Subscript(value=value):
            return _placeholder(value, source)
    inner = _named_within(node)
    return UNKNOWN if inner is None else _placeholder(inner, source)


def _named_within(node: ast.expr) -> ast.expr | None:
    """Return the part of a call or choice that a reader knows it by; None if there is none."""
    match node:
        case ast.BoolOp(values=[first, *_]):
            return first
        case ast.Call(func=ast.Attribute(value=value, attr="removeprefix")):
            return value
        case ast.Call(args=[ast.Constant(value=None), first, *_]):  # filter(None, known)
            return first
        case ast.Call(args=[first, *_]):
            return first
        case ast.Call(func=ast.Attribute(value=value)):
            return value
    return None


def _name(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
