"""Every loop that was rewritten, by the key that its instrumented code names it with."""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType, ModuleType


@dataclass(frozen=True)
class Site:
    """`line` to `end_line` is the whole statement, with its `else`.

    `parent` is the key of the nearest rewritten loop around it in the same function. `trains`: it looks like a training loop.
    `generator`: its function is one.
    """

    key: str
    file: str
    line: int
    end_line: int
    kind: str
    parent: str | None
    function: str
    trains: bool = False
    generator: bool = False


SITES: dict[str, Site] = {}
INSTRUMENTED_FILES: set[str] = set()
"""Whose variables are state: all of the user's, with loops or without, and those of installed packages that were rewritten."""
PACKAGES: set[str] = set()
"""Files of installed packages among them: their globals are not the script's state."""
TEXTS: dict[str, int] = {}
"""Of the user's files that were loaded, a checksum of what they held then."""
LOADED_FROM: dict[str, tuple[str, float]] = {}
"""Of the same files, where they lie, since the working folder may be another one later, and when they had been written."""
LOADED_BY_FILE: list[ModuleType] = []
"""Modules of the user's that were loaded by their file (`importlib.util.spec_from_file_location`), first ones first."""
LEFT_ALONE: dict[str, str] = {}
"""Files that could not be rewritten, with the reason: for the protection report."""

_generators: set[tuple[str, str]] = set()
"""Generators with loops that were rewritten: file and name."""

_modules: list[tuple[CodeType, CodeType]] = []
_plain: dict[CodeType, CodeType] = {}


def note_text(file: str, source: bytes) -> None:
    """Note what a file of the user's held when it was loaded."""
    TEXTS[file] = checksum(source)
    path = os.path.abspath(file)
    try:
        LOADED_FROM[file] = path, os.stat(path).st_mtime
    except OSError:
        LOADED_FROM[file] = path, time.time()  # it is gone already, so it was made to be loaded


def checksum(source: bytes) -> int:
    """Return what TEXTS holds of a file with this content."""
    return zlib.crc32(source)


def changed_since(recorded: Mapping[str, int]) -> list[str]:
    """Return the files that hold something else here than in the process that has recorded its own, of those that both have."""
    return sorted(file for file, text in TEXTS.items() if recorded.get(file, text) != text)


def register(file: str, sites: tuple[Site, ...], code: CodeType, plain: CodeType) -> None:
    """Make one instrumented file known. `plain` is the code of the same module as Python compiles it."""
    SITES.update((site.key, site) for site in sites)
    INSTRUMENTED_FILES.add(file)
    _generators.update((file, site.function.rpartition(".")[2]) for site in sites if site.generator)
    _modules.append((code, plain))


def module_named(name: str) -> ModuleType | None:
    """Return the module of that name, if need be one that was loaded by its file, and that nothing finds by its name."""
    found = sys.modules.get(name)
    return found or next((module for module in LOADED_BY_FILE if module.__name__ == name), None)


def may_train(code: CodeType) -> bool:
    """Return whether the code of a generator has loops that were rewritten."""
    return (code.co_filename, code.co_name) in _generators


def plain_code(code: CodeType) -> CodeType | None:
    """Return the code of the same function without our calls, or None if `code` is not of an instrumented file.

    Both have the same local, cell and free variables: a compiler that traces bytecode can be given this one.
    """
    while _modules:
        # Functions lie in the constants of the code that defines them, in the same order in both.
        to_visit = [_modules.pop()]
        while to_visit:
            instrumented, plain = to_visit.pop()
            _plain[instrumented] = plain
            to_visit.extend(zip(_inner(instrumented), _inner(plain), strict=True))
    return _plain.get(code)


def _inner(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]
