"""Which streams of the processes' output --tee and --redirects name."""

from __future__ import annotations

import re

from torchrelay.protocol.errors import UserError

STDOUT = 1
STDERR = 2


def parse_streams(flag: str, text: str) -> int | dict[int, int]:
    """`3` -> streams of all local ranks; `0:3,1:1` -> by local rank. 1 is stdout, 2 stderr. Raises UserError."""
    if re.fullmatch(r"[0123]", text):
        return int(text)
    if re.fullmatch(r"\d+:[0123](,\d+:[0123])*", text):
        return {int(rank): int(value) for rank, value in (part.split(":") for part in text.split(","))}
    raise UserError(f"--{flag} {text}: use 0, 1 (stdout), 2 (stderr) or 3 (both), or a mapping such as 0:3,1:1")


def streams_of(setting: int | dict[int, int], local_rank: int | None) -> int:
    """For a process without a rank as yet: every stream that any rank has, since a file cannot be opened later."""
    if isinstance(setting, int):
        return setting
    if local_rank is not None:
        return setting.get(local_rank, 0)
    streams = 0
    for value in setting.values():
        streams |= value
    return streams
