"""An import under `if TYPE_CHECKING` has one of three reasons. Where none holds, it is an ordinary import.

The layers forbid it; it would go in a circle; or it would load a module that the importing one does without when it runs.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[3] / "shim"
Imports = dict[str, set[str]]


def modules() -> dict[str, Path]:
    """The files of the shim, by the name of their module."""
    files = sorted((ROOT / "torchrelay").rglob("*.py"))
    return {".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): f for f in files}


def imported(node: ast.stmt, known: dict[str, Path]) -> Iterator[str]:
    """The modules of the shim that an import statement loads, without their packages."""
    if isinstance(node, ast.ImportFrom) and node.module:
        found = [f"{node.module}.{name.name}" for name in node.names]
        yield from (name if name in known else node.module for name in found if name in known or node.module in known)
    elif isinstance(node, ast.Import):
        yield from (name.name for name in node.names if name.name in known)


def read(known: dict[str, Path]) -> tuple[Imports, Imports]:
    """What each module imports when it is loaded, and what for types alone."""
    loads: Imports = defaultdict(set)
    for_types: Imports = defaultdict(set)
    for module, file in known.items():
        loads[module].add(module.rpartition(".")[0])
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                for part in node.body:
                    for_types[module].update(imported(part, known))
            else:
                loads[module].update(imported(node, known))
    return loads, for_types


def loaded_with(module: str, loads: Imports) -> set[str]:
    found = {module}
    ahead = [module]
    while ahead:
        new = loads.get(ahead.pop(), set()) - found
        found |= new
        ahead += new
    return found


def are_forbidden() -> dict[tuple[str, str], bool]:
    """For two folders beside each other: whether the first may not import the second."""
    config = tomllib.loads((ROOT / "layers.toml").read_text(encoding="utf-8"))
    found = {}
    for contract in config["tool"]["importlinter"]["contracts"]:
        if contract["type"] == "layers":
            (container,) = contract["containers"]
            rows = [
                (f"{container}.{name.strip()}", row)
                for row, names in enumerate(contract["layers"])
                for name in names.split("|")
            ]
            found |= {(a, b): above >= below for a, above in rows for b, below in rows if a != b}
    return found


def pairs_of_folders(module: str, other: str) -> Iterator[tuple[str, str]]:
    mine = module.split(".")
    theirs = other.split(".")
    for size in range(1, min(len(mine), len(theirs)) + 1):
        yield ".".join(mine[:size]), ".".join(theirs[:size])


def without_reason(loads: Imports, for_types: Imports, forbidden: dict[tuple[str, str], bool]) -> list[str]:
    found = []
    for module, others in sorted(for_types.items()):
        mine = loaded_with(module, loads)
        for other in sorted(others):
            against_layers = any(forbidden.get(pair, False) for pair in pairs_of_folders(module, other))
            is_circle = module in loaded_with(other, loads)
            if other in mine and not against_layers and not is_circle:
                found.append(f"{module} -> {other}")
    return found


def test_what_is_imported_for_types_alone_has_a_reason() -> None:
    loads, for_types = read(modules())
    assert len(loads) > 300, "the tree was not read"
    assert len(for_types) > 20
    assert without_reason(loads, for_types, are_forbidden()) == []


def test_an_import_of_what_is_loaded_anyway_is_found() -> None:
    loads = {"p.low.a": {"p.low.b"}, "p.low.c": {"p.low.a"}, "p.high.d": {"p.low.a"}}
    for_types = {"p.high.d": {"p.low.b", "p.low.c"}, "p.low.a": {"p.low.c"}, "p.low.c": {"p.high.d"}}
    assert without_reason(loads, for_types, {("p.low", "p.high"): True}) == ["p.high.d -> p.low.b"]
