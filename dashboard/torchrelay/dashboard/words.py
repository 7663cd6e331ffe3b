"""Numbers and lists as people read them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

NAMED = 4
"""How many of a list are named; the others are counted."""


def count(number: int, noun: str) -> str:
    """Return `1 spare`, `2 spares`, `10,000 ranks`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(values: Iterable[object]) -> str:
    """Return `1`, `1 and 2`, `1, 2 and 3`, `0, 1, 2, 3 and 8 more`."""
    words = [str(v) for v in values]
    if len(words) > NAMED + 1:
        words = [*words[:NAMED], f"{len(words) - NAMED:,} more"]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""


def ranks(numbers: Sequence[int]) -> str:
    """Return `rank 1`, `ranks 1 and 2`."""
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {listed(numbers)}"


def duration(seconds: float) -> str:
    """Return `0.59 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 9.95:
        return f"{seconds:.2f} s" if seconds < 0.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    for unit_s, unit, below_s, below in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit_s:
            rest = whole % unit_s // below_s
            return f"{whole // unit_s} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{whole} s"


def size(value_bytes: int) -> str:
    """Return `1.5 MiB`."""
    value = float(value_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


class HowFar(Protocol):
    """An event `migration_progress`, or what a status says of it."""

    @property
    def done_bytes(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...
    @property
    def bytes_per_s(self) -> float: ...
    @property
    def left_s(self) -> float: ...


def share_done(p: HowFar) -> float:
    """Return the share that is done, from 0 to 1."""
    return p.done_bytes / p.total_bytes if p.total_bytes else 0.0


def how_far(p: HowFar) -> str:
    """Return `37 %, 8.2 s left (1.5 GiB of 4.0 GiB at 310.0 MiB/s)`."""
    left = f", {duration(p.left_s)} left" if p.left_s >= 0.1 else ""
    rate = size(round(p.bytes_per_s))
    return f"{int(share_done(p) * 100)} %{left} ({size(p.done_bytes)} of {size(p.total_bytes)} at {rate}/s)"


def percent(share: float) -> str:
    """Return the share in percent, rounded down: `100.0 %` is said only of the whole."""
    return "100 %" if share >= 1.0 else f"{int(share * 1000) / 10:.1f} %"


def sentence(text: str) -> str:
    """Return the text with a capital letter and a full stop."""
    text = text.strip()
    if not text:
        return ""
    first = text.split()[0].strip("(),:;'")
    begin = text[0].upper() if first.isalpha() else text[0]  # n0.s0 is a name
    return begin + text[1:] + ("" if text[-1] in ".!?" else ".")
