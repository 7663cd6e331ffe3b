"""Which runs `torchrelay dashboard` lists: those that run, and the newest of those that are kept."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from support.kept_runs import SMALL_RUN, finished, head, write

from torchrelay.cli.commands.dashboard import KEPT_SHOWN, put_kept
from torchrelay.cli.folders.folder import Process
from torchrelay.dashboard.hub import Hub

T = 1_700_000_000.0


def listed(history: Path | None) -> list[dict[str, Any]]:
    hub = Hub()
    asyncio.run(put_kept(hub, history))
    return list(json.loads(hub.listed()["runs"]))


def test_kept_runs_are_listed_the_newest_first_with_when_they_began(tmp_path: Path) -> None:
    write(tmp_path, [*SMALL_RUN, finished(T + 100.0)], head("a0", T))
    write(tmp_path, SMALL_RUN, head("b1", T + 1.0))
    write(tmp_path, SMALL_RUN, head("c2", T + 2.0, Process.find(os.getpid())))  # it runs: it is followed instead
    killed, over = listed(tmp_path)
    assert [run["run"] for run in (killed, over)] == ["b1", "a0"]
    assert killed["over"] is over["over"] is True
    assert killed["headline"] == "No news of this job"
    assert over["when"].startswith("pretrain, began 2023-11-")
    assert over["when"].endswith("in /data")
    assert over["command"] == "torchrelay run train.py"


def test_of_many_the_newest_are_listed_and_one_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    for number in range(KEPT_SHOWN + 2):
        write(tmp_path, SMALL_RUN, head(f"r{number:02}", T + number))
    newest = max(tmp_path.iterdir())
    (newest / "events.jsonl").write_text("none of ours\n")
    shown = [run["run"] for run in listed(tmp_path)]
    assert shown == [f"r{number:02}" for number in range(KEPT_SHOWN, 1, -1)]


def test_without_a_history_nothing_is_listed() -> None:
    assert listed(None) == []
