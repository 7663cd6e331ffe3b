"""What is made from code: a part of a page between two marks, or whole files. Written, or with `--check` only compared."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def write_or_check(texts: Mapping[Path, str], script: str, description: str | None) -> int:
    """Write files by their texts, or with `--check` say which are stale: exit code 1 if any is."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if something is stale")
    if not parser.parse_args().check:
        for path, text in texts.items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
        return 0
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text("utf-8") != text]
    if stale:
        print(
            f"stale: {', '.join(str(p.relative_to(ROOT)) for p in stale)}; run: python scripts/{script}",
            file=sys.stderr,
        )
    return int(bool(stale))


@dataclass(frozen=True)
class GeneratedPart:
    """A generated part of a page.

    `page`: below the repository's root. `name`: of the part in its marks. `script`: makes it. `made()`: its text.
    """

    page: str
    name: str
    script: str
    made: Callable[[], str]

    @property
    def path(self) -> Path:
        return ROOT / self.page

    def text(self) -> str:
        """Return the whole page as it should be."""
        begin, end = f"<!-- {self.name}: begin (scripts/{self.script}) -->\n", f"<!-- {self.name}: end -->"
        before, found, rest = self.path.read_text("utf-8").partition(begin)
        _, ended, after = rest.partition(end)
        if not found or not ended:
            raise ValueError(f"{self.page} has no {begin.strip()} or no {end}")
        return before + begin + self.made() + end + after

    def main(self, description: str | None) -> int:
        """Write the page, or with `--check` say whether it is up to date: exit code 1 if not."""
        return write_or_check({self.path: self.text()}, self.script, description)
