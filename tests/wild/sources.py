"""Lays a program's source out in a folder, with its device replacements."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

from wild.programs import Manifest, Program

_KINDS_OF_SOURCE = (".py", ".json", ".yaml", ".yml", ".toml", ".cfg", ".txt", ".tsv", ".gz")
"""Pictures, notebooks and the like are not needed, and a bare copy may lack the largest of them."""


class SourceError(Exception):
    """The source of a program is missing, or is another one than the manifest names."""


def find(program: Program, sources: Path) -> Path | None:
    """Return the checkout or bare copy of the program's repository below `sources`, or None where there is none."""
    owner, _, name = program.repository.partition("/")
    for place in (f"{owner}+{name}/repo", f"{owner}/{name}", f"{owner}+{name}", name):
        if (sources / place).is_dir():
            return sources / place
    return None


def lay_out(program: Program, manifest: Manifest, sources: Path, destination: Path) -> None:
    """Fill `destination` with the program's folder, as the commit of the manifest has it, and replace devices in it.

    Raises SourceError where the source is not there, or its digest is another one.
    """
    destination.mkdir(parents=True, exist_ok=True)
    if not program.repository:
        return
    repository = find(program, sources)
    if repository is None:
        raise SourceError(f"{program.repository} is not below {sources}")
    _extract(repository, program, destination)
    main = destination / program.file
    if not main.is_file():
        raise SourceError(f"{program.repository} has no {program.file} in {program.folder or 'its root'}")
    digest = hashlib.sha256(main.read_bytes()).hexdigest()
    if digest != program.sha256:
        raise SourceError(f"{program.file} has the digest {digest}, the manifest says {program.sha256}")
    pairs = [pair for name in program.replace for pair in manifest.replacements[name]] + list(program.edits)
    for path in destination.rglob("*.py"):
        if not path.is_file():  # a link to what is not laid out
            continue
        before = path.read_text(errors="surrogateescape")
        after = before
        for pattern, replacement in pairs:
            after = re.sub(pattern, replacement, after, flags=re.MULTILINE)
        if after != before:
            path.write_text(after, errors="surrogateescape")


def _extract(repository: Path, program: Program, destination: Path) -> None:
    if not any((repository / name).exists() for name in (".git", "HEAD")):
        shutil.copytree(repository / program.folder, destination, dirs_exist_ok=True, symlinks=True)
        return
    tree = f"{program.commit}:{program.folder}" if program.folder else program.commit
    listed = _git(repository, "ls-tree", "-r", "-z", "--format=%(objectname) %(path)", tree)
    files = [line.partition(" ") for line in listed.stdout.decode().split("\0")]
    wanted = {name: number for number, _, name in files if name.endswith(_KINDS_OF_SOURCE)}
    asked = "\n".join(wanted.values()).encode()
    known = _git(repository, "cat-file", "--batch-check", given=asked).stdout.decode().splitlines()
    names = [name for name, line in zip(wanted, known) if not line.endswith(" missing")]
    packed = _git(repository, "archive", "--format=tar", tree, "--", *names)
    if listed.returncode == 0 and packed.returncode == 0:
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
            archive.extractall(destination, filter="data")
    else:
        said = (listed.stderr or packed.stderr).decode(errors="replace").strip()
        raise SourceError(f"{program.repository} at {program.commit}: {said}")


def _git(repository: Path, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(repository), *arguments], input=given, capture_output=True)
