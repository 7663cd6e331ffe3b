"""The script that is drilled: how it is started, and in which folder."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchrelay.protocol.errors import UserError

MOST_BYTES = 200 << 20
_LEFT_OUT = {".git", ".hg", "__pycache__", "node_modules", ".mypy_cache", ".ruff_cache", ".pytest_cache"}


@dataclass(frozen=True)
class Program:
    """`script`: as after `torchrun`, a file or with `module` a module's name. `variables`: added to the environment.

    `folder`: the working folder, of which each run gets a copy. `relay_options`: what `torchrelay run` gets, such as --buddy-every.
    """

    script: str
    args: tuple[str, ...] = ()
    module: bool = False
    ranks: int = 2
    folder: Path = field(default_factory=Path.cwd)
    variables: Mapping[str, str] = field(default_factory=dict)
    relay_options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.script

    def command(self, copy: Path) -> list[str]:
        """What follows a launcher's options, for a run in `copy`."""
        if self.module:
            return ["-m", self.script, *self.args]
        return [self._script_in(copy), *self.args]

    def _script_in(self, copy: Path) -> str:
        """A script that lies in the folder is run from the copy: many look for their files beside themselves."""
        path = (self.folder / self.script).absolute()
        if path.is_relative_to(self.folder.absolute()):
            return str(copy / path.relative_to(self.folder.absolute())) if os.path.isabs(self.script) else self.script
        return str(path)

    def torchrun(self, copy: Path) -> list[str]:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}"]
        return [*launcher, *self.command(copy)]

    def torchrelay(self, copy: Path, spares: int, options: list[str]) -> list[str]:
        launcher = [sys.executable, "-m", "torchrelay.cli", "run", f"--nproc-per-node={self.ranks}"]
        return [*launcher, f"--spares={spares}", *self.relay_options, *options, *self.command(copy)]

    def copy_folder(self, copy: Path) -> None:
        """Each run has the folder as it was before any. Raises UserError where it cannot be copied."""
        check_size(self.folder)
        try:
            shutil.copytree(self.folder, copy, symlinks=True, ignore=_ignored)
        except (OSError, shutil.Error) as e:
            raise UserError(
                f"the working folder {self.folder} cannot be copied: {e}; give another one with --workdir"
            ) from e


def check_size(folder: Path) -> None:
    """Raises UserError for a folder that is too large to be copied for each run."""
    total = 0
    for top, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - _ignored(top, [*folders, *files]))
        for name in files:
            try:
                total += os.lstat(os.path.join(top, name)).st_size
            except FileNotFoundError:
                continue
        if total > MOST_BYTES:
            raise UserError(
                f"each run gets a copy of its working folder, and {folder} has more than {MOST_BYTES >> 20} MB: give --workdir a "
                "folder that has only what the script reads by relative paths (links to data are copied as links)"
            )


def _ignored(top: str, names: list[str]) -> set[str]:
    """Caches, and virtual environments; scripts hardly ever read them by a relative path."""
    environments = {n for n in names if os.path.exists(os.path.join(top, n, "pyvenv.cfg"))}
    return {n for n in names if n in _LEFT_OUT} | environments
