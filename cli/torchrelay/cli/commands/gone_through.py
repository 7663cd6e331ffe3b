"""What the ranks of a check went through before they stood still: epochs' ends, evaluations, saves, files."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from torchrelay.protocol.names import SEEN_EPOCH, SEEN_EVALUATION, SEEN_SAVE

WORDS = {SEEN_EPOCH: "an epoch's end", SEEN_EVALUATION: "an evaluation", SEEN_SAVE: "a save"}
MOST_FILES = 5


@dataclass(frozen=True)
class Event:
    """One thing that a rank came through. `kind`: one of names.SEEN_EPOCH and its siblings. `file`, `line`: where in the script."""

    kind: str
    text: str
    file: str
    line: int


@dataclass(frozen=True)
class GoneThrough:
    """All that the ranks came through.

    `files`: those that were made, and are removed again. `cut`: whether loaders were cut to a few batches; `cut_failed`: why
    a cut run told nothing, so that the script was run as it is; empty otherwise.
    """

    events: tuple[Event, ...] = ()
    files: tuple[str, ...] = ()
    cut: bool = False
    cut_failed: str = ""

    def told_as(self, copy: str, own: str) -> GoneThrough:
        """Replace paths in the copy by the user's own paths."""
        events = tuple(dataclasses.replace(e, file=e.file.replace(copy, own)) for e in self.events)
        return dataclasses.replace(self, events=events, files=tuple(f.replace(copy, own) for f in self.files))


def read(seen: Path, made: Path, cut: bool) -> GoneThrough:
    """Read what the ranks have written; each thing once, even if several ranks have written it."""
    events = [Event(**json.loads(line)) for line in _lines(seen)]
    files = [os.fsdecode(line) for line in _lines(made) if os.path.isfile(line)]
    return GoneThrough(tuple(dict.fromkeys(events)), tuple(dict.fromkeys(files)), cut)


def _lines(path: Path) -> list[bytes]:
    try:
        return [line for line in path.read_bytes().split(b"\n") if line]
    except FileNotFoundError:
        return []


def view(seen: GoneThrough) -> list[Text]:
    """Return, for people, what the steps of a check have come through, and what not."""
    parts = [Text(), Text("what these steps came through", style="bold")]
    for event in seen.events:
        place = f"{event.file}:{event.line}: " if event.file else ""
        parts.append(Text(f"  {place}{WORDS.get(event.kind, event.kind)}{f' ({event.text})' if event.text else ''}"))
    if seen.files:
        more = f" and {len(seen.files) - MOST_FILES} more" if len(seen.files) > MOST_FILES else ""
        parts.append(Text(f"  files, which are removed again: {', '.join(seen.files[:MOST_FILES])}{more}"))
    missing = [words for kind, words in WORDS.items() if not any(e.kind == kind for e in seen.events)]
    if missing:
        parts.append(Text(f"  not: {', '.join(missing)}. What shows itself there is not in this report"))
    if seen.cut_failed:
        parts.append(
            Text(f"  with data loaders cut to a few batches the script could not be looked at: {seen.cut_failed}")
        )
    return parts
