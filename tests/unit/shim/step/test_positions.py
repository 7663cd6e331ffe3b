"""Where a rank can stand: what the shim says is what a controller takes."""

from __future__ import annotations

import ast
from pathlib import Path

import torchrelay.shim
from torchrelay.protocol.incoming import POSITIONS

SHIM = Path(torchrelay.shim.__file__).parent
PLACE_OF_POSITION = {"stand": 0, "interrupted": 1, "_wait": 0}
"""Functions that are given one, and as which argument."""


def _constants(node: ast.AST) -> set[str]:
    """Texts that the expression can be; of a condition both sides, and not what it asks."""
    if isinstance(node, ast.IfExp):
        return _constants(node.body) | _constants(node.orelse)
    if isinstance(node, ast.BoolOp):
        return set().union(*map(_constants, node.values))
    if isinstance(node, ast.Tuple):
        return set().union(*map(_constants, node.elts))
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def _said(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and target.attr == "position":
                    found |= _constants(node.value)
                elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = zip(target.elts, node.value.elts)
                    found |= {c for t, v in pairs if getattr(t, "attr", "") == "position" for c in _constants(v)}
        elif isinstance(node, ast.Call):
            place = PLACE_OF_POSITION.get(getattr(node.func, "attr", ""))
            if place is not None and len(node.args) > place:
                found |= _constants(node.args[place])
        elif isinstance(node, ast.FunctionDef) and node.name == "standing_position":
            found |= {c for r in ast.walk(node) if isinstance(r, ast.Return) and r.value for c in _constants(r.value)}
    return found - {""}


def test_each_position_that_a_rank_can_say_is_one_that_is_taken() -> None:
    said = set().union(*(_said(ast.parse(path.read_text())) for path in SHIM.rglob("*.py")))
    assert {"head", "body", "gate", "torn", "after", "once", "finished"} <= said
    assert said <= POSITIONS
