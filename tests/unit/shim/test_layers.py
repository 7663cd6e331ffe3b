"""What the folders of the shim say of themselves agrees with the layers that are linted."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[3] / "shim"


def contracts() -> list[dict[str, Any]]:
    config = tomllib.loads((ROOT / "layers.toml").read_text(encoding="utf-8"))
    return [c for c in config["tool"]["importlinter"]["contracts"] if c["type"] == "layers"]


def folders() -> list[tuple[Path, list[str]]]:
    """Each folder with the names in the layer above it."""
    found = []
    for contract in contracts():
        (container,) = contract["containers"]
        below = ROOT.joinpath(*container.split("."))
        layers = [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]
        for above, layer in zip([[], *layers], layers, strict=False):
            found += [(below / name, above) for name in layer if (below / name).is_dir()]
    return found


@pytest.mark.parametrize(("folder", "above"), [pytest.param(f, a, id=f.name) for f, a in folders()])
def test_a_folder_says_what_belongs_in_it_and_who_may_import_it(folder: Path, above: list[str]) -> None:
    told = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    what, _, rest = told.partition("\n\n")
    who = " ".join(rest.split()).rpartition(". ")[2]
    assert len(what) > 40
    assert who.endswith("may import it.")
    assert {name for name in who.split("`")[1::2] if name != "capture" or folder.parent.name != "capture"} == set(above)


def test_each_folder_of_the_shim_is_in_a_layer() -> None:
    named = {folder for folder, _ in folders()}
    shim = ROOT / "torchrelay" / "shim"
    assert {path.parent for path in shim.glob("*/__init__.py")} <= named
