"""The script that is drilled: how it is started, and in which folder."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchrelay.cli.folders import working_folder


@dataclass(frozen=True)
class DrilledProgram:
    """The script and how to start it.

    `script`: as after `torchrun`, a file or with `module` a module's name. `variables`: added to the environment.
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
        """Return what follows a launcher's options, for a run in `copy`."""
        if self.module:
            return ["-m", self.script, *self.args]
        return [working_folder.in_copy(self.script, self.folder, copy), *self.args]

    def torchrun(self, copy: Path) -> list[str]:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}"]
        return [*launcher, *self.command(copy)]

    def torchrelay(self, copy: Path, spares: int, options: list[str]) -> list[str]:
        launcher = [sys.executable, "-m", "torchrelay.cli", "run", f"--nproc-per-node={self.ranks}"]
        return [*launcher, f"--spares={spares}", *self.relay_options, *options, *self.command(copy)]
