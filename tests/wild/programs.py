"""The manifest of the wild corpus: training programs that nobody here wrote."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MANIFEST = Path(__file__).with_name("manifest.toml")


@dataclass(frozen=True)
class OnGpu:
    """A program's command on a GPU, and the edits that make it small. Its devices and its backend stay as they are."""

    command: tuple[str, ...]
    edits: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Program:
    """One program, as it is run.

    `repository`, `commit`: where its source is; both are empty for a program of an installed package. `sha256` is that of `file`.
    `folder`: the part of the repository that is laid out, and the working folder of the run.
    `replace`: names of the manifest's tables of device replacements; `edits` are pairs of pattern and replacement of its own.
    `data`: generators of tiny data, by name. `environment`: which packages it needs, by name.
    `added_last`: whether it was chosen after the mechanisms were done, so that its first result counts.
    `cuda`: how it runs on a GPU, where that is known. `longer`: words of the command, and those in their place for a run of
    hundreds of steps, in which a step's cost is seen.
    """

    name: str
    shape: str
    command: tuple[str, ...]
    environment: str
    repository: str = ""
    commit: str = ""
    folder: str = ""
    file: str = ""
    sha256: str = ""
    replace: tuple[str, ...] = ()
    edits: tuple[tuple[str, str], ...] = ()
    data: tuple[str, ...] = ()
    ranks: int = 2
    steps: int = 20
    variables: dict[str, str] = field(default_factory=dict)
    added_last: bool = False
    cuda: OnGpu | None = None
    longer: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Environment:
    """A virtual environment of its own: `torch` is installed first."""

    name: str
    torch: tuple[str, ...]
    packages: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    programs: tuple[Program, ...]
    environments: dict[str, Environment]
    replacements: dict[str, tuple[tuple[str, str], ...]]

    def on_gpu(self, names: list[str]) -> list[Program]:
        """Return the programs of these names, or all that are known to run on a GPU, as they run there.

        Raises KeyError for a name that the manifest lacks, or whose program is not known to run on a GPU.
        """
        found = []
        for program in self.named(names):
            if program.cuda is not None:
                command, edits = program.cuda.command, program.cuda.edits
                found.append(replace(program, command=command, edits=edits, replace=("deterministic",), variables={}))
            elif names:
                raise KeyError(f"{program.name} is not known to run on a GPU")
        return found

    def named(self, names: list[str]) -> list[Program]:
        """Return the programs of these names, or all. Raises KeyError for a name that the manifest lacks."""
        known = {program.name: program for program in self.programs}
        return [known[name] for name in names] if names else list(self.programs)


def load(path: Path = MANIFEST) -> Manifest:
    """Read the manifest. Raises TypeError for a key that no program has, KeyError for a table that is missing."""
    tables = tomllib.loads(path.read_text())
    replacements = {name: _pairs(pairs) for name, pairs in tables["replace"].items()}
    environments = {
        name: Environment(name, tuple(table["torch"]), tuple(table["packages"]))
        for name, table in tables["environment"].items()
    }
    programs = tuple(_program(table) for table in tables["program"])
    for program in programs:
        environments[program.environment]
        for name in program.replace:
            replacements[name]
    names = [program.name for program in programs]
    if len(set(names)) != len(names):
        raise KeyError("two programs of the manifest have the same name")
    return Manifest(programs, environments, replacements)


def _program(table: dict[str, Any]) -> Program:
    table = dict(table)
    for name in ("replace", "data"):
        table[name] = tuple(table.get(name, ()))
    table["command"] = tuple(table["command"].split())
    table["edits"], table["longer"] = _pairs(table.get("edits", ())), _pairs(table.get("longer", ()))
    if "cuda" in table:
        own = dict(table["cuda"])
        table["cuda"] = OnGpu(tuple(own["command"].split()), _pairs(own.get("edits", ())))
    return Program(**table)


def _pairs(pairs: Any) -> tuple[tuple[str, str], ...]:
    return tuple((str(pattern), str(replacement)) for pattern, replacement in pairs)
