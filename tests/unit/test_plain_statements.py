"""Each statement does one thing: it assigns one value, and a choice of what to do is an `if`."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("agent", "cli", "controller", "dashboard", "protocol", "shim", "webhook")


def packed(tree: ast.AST) -> list[int]:
    """Return the lines of assignments of several values that could as well be made one after the other."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and not needs_to_be_one(target.elts, node.value.elts):
                    found.append(node.lineno)
    return found


def needs_to_be_one(targets: list[ast.expr], values: list[ast.expr]) -> bool:
    """Return whether a value, or the place of one, is read from what an earlier target names: a swap does so."""
    if len(targets) != len(values) or any(isinstance(target, (ast.Starred, ast.Tuple)) for target in targets):
        return True
    for place, target in enumerate(targets):
        later = [node for part in (*targets[place + 1 :], *values[place + 1 :]) for node in ast.walk(part)]
        if any(isinstance(node, ast.expr) and ast.unparse(node) == ast.unparse(target) for node in later):
            return True
    return False


def chosen(tree: ast.AST) -> list[int]:
    """Return the lines of conditional expressions whose value nobody wants."""
    return [
        n.lineno for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, (ast.IfExp, ast.BoolOp))
    ]


@functools.cache
def trees() -> dict[str, ast.AST]:
    files = [file for part in PARTS for file in sorted((ROOT / part).rglob("*.py")) if "_pb2" not in file.name]
    return {str(file.relative_to(ROOT)): ast.parse(file.read_text()) for file in files}


def lines_of(find: Callable[[ast.AST], list[int]]) -> list[str]:
    assert len(trees()) > 900, "the tree was not read"
    return [f"{file}:{line}" for file, tree in trees().items() for line in find(tree)]


def test_independent_values_are_assigned_one_by_one() -> None:
    assert lines_of(packed) == []


def test_a_choice_of_what_to_do_is_an_if() -> None:
    assert lines_of(chosen) == []


def test_an_expression_that_chooses_what_to_do_is_found() -> None:
    assert chosen(ast.parse("f() if a else g()\na and f()\nx = f() if a else g()\nf()")) == [1, 2]


def test_a_swap_may_stay_one_statement() -> None:
    assert packed(ast.parse("a, b = b, a\nself.x, y = y, self.x\nat, table[at] = 1, 2")) == []


def test_values_that_need_not_be_one_statement_are_found() -> None:
    assert packed(ast.parse("a, b = 1, 2\nself.x, y = y, None\nbefore, self.x = self.x, 1\na = b, c")) == [1, 2, 3]
