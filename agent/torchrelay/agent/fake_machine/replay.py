"""Plays a timeline of faults on the fake machine: what `torchrelay bench detect` measures with.

A timeline is a JSON list of episodes: `name`; `do`, a list of calls of FakeMachine by name with their arguments, among them
`["pause", seconds]`; `last_s`, how long it lasts; `undo`, as `do`. What was played, and when, is written beside it: an
episode with several calls once for each.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torchrelay.agent.fake_machine.machine import FakeMachine
from torchrelay.protocol.errors import UserError

PLAYED = "played.jsonl"
DONE = "done"
CALLS = ("set", "add", "xid", "hang", "say", "port", "count", "write")


def read_timeline(path: Path) -> list[dict[str, Any]]:
    """Raises UserError for a file that is none."""
    try:
        episodes = json.loads(path.read_bytes())
        calls = {call[0] for e in episodes for call in (*e["do"], *e.get("undo", ()))}
        _ = [(str(e["name"]), float(e["last_s"])) for e in episodes]
    except (OSError, ValueError, TypeError, KeyError, IndexError) as e:
        raise UserError(f"{path} is no timeline of faults: {type(e).__name__}: {e}") from e
    if unknown := calls - {*CALLS, "pause"}:
        raise UserError(
            f"{path}: {unknown.pop()!r} is nothing that a fake machine can do; use one of {', '.join(CALLS)}"
        )
    return list(episodes)


async def play(machine: FakeMachine, path: Path) -> None:
    """To the end. Raises UserError."""
    note = _Notes(path.with_name(PLAYED)).note
    for episode in read_timeline(path):
        await _carry_out(machine, episode["do"], partial(note, episode["name"]))
        await asyncio.sleep(episode["last_s"])
        await _carry_out(machine, episode.get("undo", ()), lambda: None)
    note(DONE)


class _Notes:
    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_text("", encoding="utf-8")

    def note(self, name: str) -> None:
        with open(self._path, "a", encoding="utf-8") as f:
            f.write(json.dumps({"name": name, "time_s": time.time()}) + "\n")


async def _carry_out(machine: FakeMachine, calls: Any, begun: Callable[[], None]) -> None:
    """`begun` is called before each of them but pauses: the last time is when the evidence was whole."""
    for name, *arguments in calls:
        if name != "pause":
            begun()
        if name == "pause":
            await asyncio.sleep(arguments[0])
        else:
            getattr(machine, name)(*arguments)
