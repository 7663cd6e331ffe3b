"""Writes C stubs for every function that torch's CUDA libraries want from NVIDIA's and that is not imitated.

    stubs.py TORCH_LIB_DIR OUT_DIR [SONAME=OBJECT[,OBJECT...] ...]

Reads the undefined symbols of torch's libraries. For each NVIDIA library, OUT_DIR gets SONAME.c and SONAME.map, a version
script, as torch asks for versions of symbols. A stub returns an error, and names itself on stderr under IMITATED_GPU_TRACE.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from faults import TRACE_VARIABLE

DRIVER = "libcuda.so.1"  # torch loads it by name, none of its libraries lists it
ERRORS = {
    "libcudart.so.13": 801,
    DRIVER: 801,
    "libnccl.so.2": 5,
}  # "not supported", and NCCL's "invalid usage"; elsewhere 1
PROLOGUE = f"""#include <stdio.h>
#include <stdlib.h>
static int missing(const char *name, int error) {{
    if (getenv("{TRACE_VARIABLE}"))
        fprintf(stderr, "imitated GPU: %s is not imitated\\n", name);
    return error;
}}
"""


@dataclass(frozen=True)
class Symbol:
    """One line of a library's symbol table."""

    name: str
    version: str
    is_defined: bool
    is_weak: bool


def readelf(*arguments: object) -> str:
    """Returns what readelf prints. Raises CalledProcessError."""
    return subprocess.run(["readelf", "-W", *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def symbols(path: Path, table: str) -> list[Symbol]:
    """Lists global symbols of a library (`--dyn-syms`) or an object (`-s`)."""
    found = []
    for line in readelf(table, path).splitlines():
        match line.split():
            case [number, _, _, _, bind, _, section, name, *_] if number.rstrip(":").isdigit() and bind != "LOCAL":
                name, _, version = name.partition("@")
                found.append(Symbol(name, version.lstrip("@"), section != "UND", bind == "WEAK"))
    return found


def nvidia_libraries(library: Path) -> set[str]:
    """Names the NVIDIA libraries that a library of torch lists."""
    return set(re.findall(r"\(NEEDED\).*\[(lib(?:cu|nv|nccl)\S+)\]", readelf("-d", library)))


def library_of_version(library: Path) -> dict[str, str]:
    """Maps each version of symbols to the library that has to have it."""
    owners: dict[str, str] = {}
    file = ""
    for named_file, version in re.findall(r"File: (\S+)|Name: (\S+)", readelf("-V", library)):
        file = named_file or file
        if version:
            owners[version] = file
    return owners


def library_by_name(symbol: str, libraries: set[str]) -> str | None:
    """Guesses by the name, where there is no version: ncclSend is libnccl's, cuFileRead libcufile's, other cu... the driver's."""
    stems = {library.partition(".")[0].removeprefix("lib").lower(): library for library in libraries}
    fitting = [stem for stem in stems if symbol.lower().startswith(stem)]
    if fitting:
        return stems[max(fitting, key=len)]
    return DRIVER if re.match(r"cu[A-Z]", symbol) else None


def wanted_symbols(torch_lib: Path) -> dict[str, set[Symbol]]:
    """Tells what torch wants of each NVIDIA library."""
    libraries = sorted(torch_lib.glob("*.so"))
    tables = {library: symbols(library, "--dyn-syms") for library in libraries}
    own = {symbol.name for table in tables.values() for symbol in table if symbol.is_defined}
    wanted: dict[str, set[Symbol]] = {name: set() for library in libraries for name in nvidia_libraries(library)}
    wanted.setdefault(DRIVER, set())
    for library, table in tables.items():
        by_version = library_of_version(library)
        for symbol in table:
            if symbol.is_defined or symbol.name in own:
                continue
            if symbol.version:
                owner = by_version.get(symbol.version)
            else:
                owner = None if symbol.is_weak else library_by_name(symbol.name, set(wanted))
            if owner in wanted:
                wanted[owner].add(symbol)
    return wanted


def write(soname: str, wanted: set[Symbol], imitated: set[str], out: Path) -> None:
    """Writes the stubs and the version script of one library. Raises SystemExit if torch wants several versions of it."""
    names = sorted({symbol.name for symbol in wanted} - imitated)
    stubs = [f'int {name}(void) {{ return missing("{name}", {ERRORS.get(soname, 1)}); }}\n' for name in names]
    (out / f"{soname}.c").write_text(PROLOGUE + "".join(stubs))
    versions = {symbol.version for symbol in wanted if symbol.version}
    if len(versions) > 1:
        raise SystemExit(f"{soname}: torch wants several versions of symbols: {sorted(versions)}")
    (out / f"{soname}.map").write_text(f"{''.join(versions)} {{ global: *; }};\n")
    print(f"{soname}: torch wants {len(wanted)} functions, {len(stubs)} of them are stubs")


def main() -> None:
    torch_lib, out = map(Path, sys.argv[1:3])
    imitated: dict[str, set[str]] = defaultdict(set)
    for argument in sys.argv[3:]:
        soname, _, objects = argument.partition("=")
        for path in objects.split(","):
            imitated[soname] |= {symbol.name for symbol in symbols(Path(path), "-s") if symbol.is_defined}
    out.mkdir(parents=True, exist_ok=True)
    for soname, wanted in sorted(wanted_symbols(torch_lib).items()):
        write(soname, wanted, imitated[soname], out)


if __name__ == "__main__":
    main()
