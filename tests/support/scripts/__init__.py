"""Scripts whose output shows what a shim in their process could get wrong. Each runs on Python 3.10 and without torch."""

from __future__ import annotations

from textwrap import dedent

from support.scripts import failures, language, source_text, surroundings
from support.scripts.helpers import HELPERS


def _bytes(source: str | bytes) -> bytes:
    return source if isinstance(source, bytes) else dedent(source).lstrip("\n").encode()


SCRIPTS = {
    name: _bytes(source)
    for subject in (failures, language, source_text, surroundings)
    for name, source in subject.SCRIPTS.items()
}
"""Name -> source."""
HELPER_FILES = {name: dedent(source).lstrip("\n") for name, source in HELPERS.items()}
"""Files that lie beside a script."""
