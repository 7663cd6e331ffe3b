"""Work counted in lines of Python, which other load on the machine does not change."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any


@dataclass
class Lines:
    count: int = 0


@contextlib.contextmanager
def counted_lines() -> Iterator[Lines]:
    """Count the lines that this thread runs in frames that begin or are resumed inside, each turn of a loop anew."""
    lines, before = Lines(), sys.gettrace()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        lines.count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(before)
