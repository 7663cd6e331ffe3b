"""The corpus: ordinary training programs, and the manifest that says how each is started and where it can be struck."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torchrelay.cli.relay_score.where import Where
from torchrelay.protocol.errors import UserError

MANIFEST = "corpus.json"
_SOURCE_CHECKOUT = Path(__file__).parents[4] / "tests" / "corpus"
LAUNCHES = ("script", "module")


@dataclass(frozen=True)
class CorpusEntry:
    """One program. `steps`: optimizer steps in a run; `epoch_step`: the first step of a later epoch, 0 if it has none.

    `launch`: `script` (a path below the corpus) or `module` (as after `-m`), which finds more of the corpus in the folders of
    `path`. `phases`: those in which it can be struck; `places`: those of its own in which it strikes itself. `buddy_every`:
    given to `torchrelay run`, for entries in which each rank alone holds its part; 0: not given. `cpu_only`: why it does not run
    on a device, empty if it does; `own_devices`: on one, each rank needs a device of its own.
    """

    name: str
    group: str
    program: str
    steps: int
    args: tuple[str, ...] = ()
    ranks: int = 2
    launch: str = "script"
    path: tuple[str, ...] = ()
    epoch_step: int = 0
    phases: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    timeout_s: float = 120.0
    buddy_every: int = 0
    cpu_only: str = ""
    own_devices: bool = False

    def command(self, corpus: Path) -> list[str]:
        """Return what follows a launcher's options, in torchrun's notation."""
        if self.launch == "module":
            return ["-m", self.program, *self.args]
        return [str(corpus / self.program), *self.args]

    def variables(self, corpus: Path) -> dict[str, str]:
        """Return what the program needs in its environment."""
        return {"PYTHONPATH": os.pathsep.join(str(corpus / folder) for folder in self.path)} if self.path else {}

    def undisturbed(self) -> str:
        """Return all that decides what the program computes, besides the files of the corpus."""
        return f"{self.launch} {self.program} {self.args} {self.path} {self.ranks}"

    def why_not_run(self, where: Where) -> str:
        """Return why the program cannot be run there; empty if it can."""
        if self.missing():
            return f"needs {', '.join(self.missing())}"
        if where.devices and self.cpu_only:
            return f"not on a device: {self.cpu_only}"
        if where.devices and self.own_devices and len(where.devices) < self.ranks:
            return f"needs {self.ranks} devices, one for each rank, of which there are {len(where.devices)}"
        return ""

    def missing(self) -> list[str]:
        """Return the packages that the program needs and that are not installed."""
        return [name for name in self.requires if find_spec(name) is None]


def find_corpus(given: Path | None) -> Path:
    """Return the folder of the corpus. Raises UserError if there is none."""
    folder = given or _SOURCE_CHECKOUT
    if (folder / MANIFEST).is_file():
        return folder.resolve()
    if given is not None:
        raise UserError(f"--corpus {given}: there is no {MANIFEST} in it")
    raise UserError(
        "the corpus is part of the source code, not of the installed package: give --corpus DIR, "
        "the folder tests/corpus of a checkout of torchrelay"
    )


def load(corpus: Path, default_phases: tuple[str, ...]) -> list[CorpusEntry]:
    """Return all entries in the order of the manifest, in which the most usual programs come first. Raises UserError."""
    path = corpus / MANIFEST
    try:
        records = json.loads(path.read_text(encoding="utf-8"))["entries"]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise UserError(f"{path}: not a manifest of a corpus: {type(e).__name__}: {e}") from e
    entries = [_entry(path, record, default_phases) for record in records]
    names = [entry.name for entry in entries]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"{path}: the name {twice[0]} is given twice")
    return entries


def _entry(path: Path, record: Any, default_phases: tuple[str, ...]) -> CorpusEntry:
    try:
        lists = {k: tuple(v) for k, v in record.items() if isinstance(v, list)}
        entry = CorpusEntry(**{"phases": default_phases, **record, **lists})
    except (TypeError, AttributeError) as e:
        raise UserError(f"{path}: {record!r}: {e}") from e
    if entry.launch not in LAUNCHES:
        raise UserError(f"{path}: {entry.name}: launch is one of {', '.join(LAUNCHES)}")
    files = (entry.program,) if entry.launch == "script" else ()
    absent = [p for p in (*files, *entry.path) if not (path.parent / p).exists()]
    if absent:
        raise UserError(f"{path}: {entry.name}: there is no {absent[0]}")
    if entry.buddy_every < 0:
        raise UserError(f"{path}: {entry.name}: buddy_every is 0 or more")
    if entry.steps < 8 or entry.ranks < 2:
        raise UserError(f"{path}: {entry.name}: an entry has 8 steps and 2 ranks at the least")
    return entry


def select(entries: list[CorpusEntry], wanted: list[str]) -> list[CorpusEntry]:
    """Return the entries with a wanted name or group, or all. Raises UserError for an unknown name."""
    unknown = [w for w in wanted if not any(w in (e.name, e.group) for e in entries)]
    if unknown:
        names = ", ".join(e.name for e in entries)
        raise UserError(f"--entry {unknown[0]}: no such entry or group; there are {names}")
    return [e for e in entries if not wanted or e.name in wanted or e.group in wanted]
