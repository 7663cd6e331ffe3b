"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class FindingMark(str, Enum):
    WELL = "well"
    WARNING = "warning"
    """The job runs; something that it may need later does not work."""
    BAD = "bad"
    """The job cannot run, or could not be protected."""

    @property
    def sign(self) -> str:
        return _SIGNS[self]


_SIGNS = {FindingMark.WELL: "√", FindingMark.WARNING: "‼", FindingMark.BAD: "×"}  # noqa: RUF001 - a cross is meant


@dataclass(frozen=True)
class Finding:
    """What a check has found. `text`: what was seen. `remedy`: what to do about it, empty if all is well."""

    mark: FindingMark
    text: str
    remedy: str = ""


def well(text: str) -> Finding:
    return Finding(FindingMark.WELL, text)


def warning(text: str, remedy: str) -> Finding:
    return Finding(FindingMark.WARNING, text, remedy)


def bad(text: str, remedy: str) -> Finding:
    return Finding(FindingMark.BAD, text, remedy)
