"""Plays a timeline of faults on the fake machine: what `torchrelay bench detect` measures with.

A timeline is a JSON object: `gpus`, how many the machine has, and `episodes`, a list. An episode has a `name`; `do`, a list of
calls of FakeMachine by name with their arguments, among them `["pause", seconds]`; `last_s`, how long it lasts; `undo`, as `do`.
What was played, and when, is written beside it: an episode with several calls once for each.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torchrelay.agent.fake_machine.machine import MAX_GPUS, FakeMachine
from torchrelay.protocol.errors import UserError

PLAYED = "played.jsonl"
DONE = "done"
CALLS = ("set", "add", "xid", "hang", "say", "port", "count", "write")


@dataclass(frozen=True)
class Timeline:
    gpus: int
    episodes: list[dict[str, Any]]


def read_timeline(path: Path) -> Timeline:
    """Read a timeline. Raises UserError for a file that is none."""
    try:
        told = json.loads(path.read_bytes())
        timeline = Timeline(int(told["gpus"]), list(told["episodes"]))
        calls = {call[0] for e in timeline.episodes for call in (*e["do"], *e.get("undo", ()))}
        _ = [(str(e["name"]), float(e["last_s"])) for e in timeline.episodes]
    except (OSError, ValueError, TypeError, KeyError, IndexError) as e:
        raise UserError(f"{path} is no timeline of faults: {type(e).__name__}: {e}") from e
    if unknown := calls - {*CALLS, "pause"}:
        raise UserError(
            f"{path}: {unknown.pop()!r} is nothing that a fake machine can do; use one of {', '.join(CALLS)}"
        )
    if not 1 <= timeline.gpus <= MAX_GPUS:
        raise UserError(f"{path}: a fake machine has 1 to {MAX_GPUS} GPUs, not {timeline.gpus}")
    return timeline


async def play(machine: FakeMachine, path: Path) -> None:
    """Play the timeline to its end. Raises UserError for a file that is no timeline."""
    note = _Notes(path.with_name(PLAYED)).note
    for episode in read_timeline(path).episodes:
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
    """Carry out the calls. `begun` is called before each of them but pauses: the last time is when the evidence was whole."""
    for name, *arguments in calls:
        if name != "pause":
            begun()
        if name == "pause":
            await asyncio.sleep(arguments[0])
        else:
            getattr(machine, name)(*arguments)
