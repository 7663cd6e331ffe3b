"""The part of a page that is made from code: between two marks, or as the whole file. Written, or with `--check` only compared."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class GeneratedPart:
    """`page`: below the repository's root. `name`: of the part in its marks. `script`: makes it. `made()`: its text."""

    page: str
    name: str
    script: str
    made: Callable[[], str]

    @property
    def path(self) -> Path:
        return ROOT / self.page

    def text(self) -> str:
        """The whole page as it is to be."""
        begin, end = f"<!-- {self.name}: begin (scripts/{self.script}) -->\n", f"<!-- {self.name}: end -->"
        before, found, rest = self.path.read_text("utf-8").partition(begin)
        _, ended, after = rest.partition(end)
        if not found or not ended:
            raise ValueError(f"{self.page} has no {begin.strip()} or no {end}")
        return before + begin + self.made() + end + after

    def main(self, description: str | None) -> int:
        """Write the page, or with `--check` say whether it is up to date: exit code 1 if not."""
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if the page is stale")
        is_only_checked = parser.parse_args().check
        text = self.text()
        if not is_only_checked:
            self.path.write_text(text, "utf-8")
        elif text != self.path.read_text("utf-8"):
            print(f"{self.page} is stale; run: python scripts/{self.script}", file=sys.stderr)
            return 1
        return 0
