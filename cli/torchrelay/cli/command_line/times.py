"""Times as people write them on the command line."""

from __future__ import annotations

import re

from torchrelay.protocol.errors import UserError

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def time_s(option: str, text: str) -> float:
    """Return the seconds of `90s`, `30m`, `2h` or `0`. Raises UserError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None or (not match[2] and float(match[1]) != 0):
        raise UserError(f"{option} {text}: give a time with its unit, as in 90s, 30m or 2h, or 0 for never")
    return float(match[1]) * _SECONDS.get(match[2], 0.0)
