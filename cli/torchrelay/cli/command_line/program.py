"""What this machine is told to run, as the other machines of a job have to be told, too."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from itertools import islice
from pathlib import Path

from torchrelay.cli.command_line.imports import imported, module_file
from torchrelay.cli.command_line.options import RunOptions
from torchrelay.protocol.options.faults import FaultKind, parse_fault

MOST_SOURCES = 300
"""A folder with more than that is no script's own: of it no more is looked at than what the script imports."""
DEPTH = 4
_DIGEST_BYTES = 8


def script_path(options: RunOptions) -> str:
    """Return the script's path on this machine. A module keeps its name: only the interpreter that runs it can find its file."""
    return f"-m {options.script}" if options.given.module else os.path.abspath(options.script)


def script_digest(options: RunOptions) -> str:
    """Return the digest of the script's file; empty if the script is a module, or cannot be read."""
    try:
        return "" if options.given.module else hashlib.sha256(Path(options.script).read_bytes()).hexdigest()
    except OSError:
        return ""


@dataclass(frozen=True)
class SourceFiles:
    """Python files that the script can import from its folder -> digest, empty if one cannot be read.

    `imported`: those that it does import, as its text says. `is_cut`: there are too many others, which are left out.
    """

    digests: dict[str, str]
    imported: tuple[str, ...]
    is_cut: bool


def sources(options: RunOptions) -> SourceFiles:
    folder = Path.cwd() if options.given.module else Path(options.script).absolute().parent
    first = module_file(folder, options.script) if options.given.module else Path(options.script).absolute()
    own = imported(folder, first) if first is not None else ()
    beside = list(islice(_python_files(folder, DEPTH), MOST_SOURCES + 1))
    is_cut = len(beside) > MOST_SOURCES
    looked_at = sorted({*own, *(() if is_cut else beside)})
    digests = {str(path.relative_to(folder)): _digest(path) for path in looked_at}
    return SourceFiles(digests, tuple(sorted(str(path.relative_to(folder)) for path in own)), is_cut)


def _digest(path: Path) -> str:
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=_DIGEST_BYTES).hexdigest()
    except OSError:
        return ""


def own_command() -> list[str]:
    """Return the words that start this same torchrelay from a shell, to be followed by `run`."""
    return ["torchrelay"] if shutil.which("torchrelay") else [sys.executable, "-m", "torchrelay.cli"]


def torch_version() -> str:
    """Return the version of the torch that ranks import, without importing it; empty if there is none."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def python_version(options: RunOptions) -> str:
    """Return Python's version; empty for a program that brings its own Python."""
    return "" if options.given.no_python else platform.python_version()


def faults_of_all(options: RunOptions) -> list[str]:
    """Return the faults that every machine is given: all but those that strike the controller, on its own machine.

    Faults that have struck already are among them: a machine that comes back after a restart does not know that they have.
    """
    given = (parse_fault(text, options.world_size) for text in options.given.inject)
    return sorted(str(fault) for fault in given if fault.kind is not FaultKind.CONTROLLER)


def _python_files(folder: Path, depth: int) -> Iterator[Path]:
    """Yield Python files, without hidden folders and without environments, whose packages have versions of their own."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.name in ("__pycache__", "node_modules", "site-packages"):
            continue
        if entry.is_file() and entry.name.endswith(".py"):
            yield Path(entry.path)
        elif depth and entry.is_dir(follow_symlinks=False) and not os.path.exists(os.path.join(entry, "pyvenv.cfg")):
            yield from _python_files(Path(entry.path), depth - 1)
