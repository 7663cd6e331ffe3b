"""Undisturbed runs, each made once for a state of the corpus, and made twice: a program that differs from itself proves nothing."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from torchrelay.cli.relay_score import run_cell
from torchrelay.cli.relay_score.compare import differences
from torchrelay.cli.relay_score.entries import CorpusEntry
from torchrelay.cli.relay_score.where import Where
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.machine.owned_folder import owned_folder


class References:
    """References below `folder`, in one folder for each entry."""

    def __init__(
        self,
        folder: Path,
        corpus: Path,
        entries: Iterable[CorpusEntry],
        versions: Mapping[str, str],
        where: Where,
    ) -> None:
        self._folder = folder
        self._corpus = corpus
        self._where = where
        self._made_with = {**versions, "where": where.in_words()}
        self._programs = {corpus / entry.program for entry in entries}

    def of(self, entry: CorpusEntry) -> Path:
        """Return the folder with what the entry's ranks wrote. Raises UserError if it does not run, or if two runs differ."""
        kept = self._folder / entry.name
        marker = kept / "made-from"
        key = f"{self._digest(entry)} {entry.undisturbed()}"
        if marker.exists() and marker.read_text(encoding="utf-8") == key:
            return kept / "out"
        with owned_folder("score") as made:
            one, two = (run_cell.run_undisturbed(entry, self._corpus, made / n, self._where) for n in ("one", "two"))
            found = differences(one, two, entry.ranks)
            if found:
                raise UserError(f"{entry.name}: two undisturbed runs differ: {'; '.join(found)}")
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(one, kept / "out")
        marker.write_text(key, encoding="utf-8")
        return kept / "out"

    def _digest(self, entry: CorpusEntry) -> str:
        """Return a digest of the program, of the modules that programs share, and of what it runs with."""
        digest = hashlib.sha256(json.dumps(self._made_with, sort_keys=True).encode())
        for path in sorted(self._corpus.rglob("*.py")):
            if path == self._corpus / entry.program or path not in self._programs:
                digest.update(str(path.relative_to(self._corpus)).encode() + path.read_bytes())
        return digest.hexdigest()
