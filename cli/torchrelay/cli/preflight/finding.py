"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Mark(str, Enum):
    WELL = "well"
    WARNING = "warning"
    """The job runs; something that it may need later does not work."""
    BAD = "bad"
    """The job cannot run, or could not be protected."""

    @property
    def sign(self) -> str:
        return _SIGNS[self]


_SIGNS = {Mark.WELL: "√", Mark.WARNING: "‼", Mark.BAD: "×"}  # noqa: RUF001 - a cross is meant


@dataclass(frozen=True)
class Finding:
    """`text`: what was seen. `remedy`: what to do about it, empty where all is well."""

    mark: Mark
    text: str
    remedy: str = ""


def well(text: str) -> Finding:
    return Finding(Mark.WELL, text)


def warning(text: str, remedy: str) -> Finding:
    return Finding(Mark.WARNING, text, remedy)


def bad(text: str, remedy: str) -> Finding:
    return Finding(Mark.BAD, text, remedy)
