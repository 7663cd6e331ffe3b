"""`kubectl torchrelay events`: what has happened to a job, from the events that Kubernetes keeps of it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from contextlib import aclosing
from datetime import datetime

from rich.console import Console
from rich.text import Text

from torchrelay.cli.cluster.api import EVENTS, JOBS, MIGRATIONS, Cluster, Object
from torchrelay.cli.display import narrate
from torchrelay.cli.display.teller import make_console

OURS = {"source": "torchrelay-controller"}
OF_A_MIGRATION = "Decision"
"""All others are told of the job, too."""
LAST = ("JobFinished", "JobFailed")
KEPT = "no event of {} is kept: Kubernetes forgets them, usually after an hour"


async def show_events(cluster: Cluster, job: str, follow: bool, as_json: bool) -> int:
    """Print the job's events that are kept, and with `follow` those to come until it ends.

    Raises UserError if there is no such job.
    """
    found = await cluster.get(JOBS, job)
    is_over = bool((found.get("status") or {}).get("finishedAt"))
    console = make_console(sys.stdout)
    told = set[str]()
    if not follow or is_over:
        kept = _of(job, await cluster.all(EVENTS, OURS), await _migrations(cluster, job))
        _tell(console, kept, told, as_json)
        if not kept and not as_json:
            console.print(KEPT.format(job))
            console.print(narrate.hint(f"kubectl torchrelay history {job} -n {cluster.namespace}"))
        return 0
    async with aclosing(cluster.states(EVENTS, OURS)) as states:
        async for state in states:
            new = _of(job, [e for e in state if e["metadata"]["uid"] not in told], await _migrations(cluster, job))
            _tell(console, new, told, as_json)
            if any(e.get("reason") in LAST and _is_about(e, "TrainingJob", job) for e in new):
                return 0
    return 0


async def _migrations(cluster: Cluster, job: str) -> set[str]:
    return {str(m["metadata"]["name"]) for m in await cluster.all(MIGRATIONS) if m["spec"]["job"] == job}


def _of(job: str, events: Iterable[Object], migrations: set[str]) -> list[Object]:
    """Return the events about the job, in their order."""
    own = [
        e
        for e in events
        if _is_about(e, "TrainingJob", job)
        or (e.get("reason") == OF_A_MIGRATION and any(_is_about(e, "Migration", m) for m in migrations))
    ]
    return sorted(own, key=_order)


def _is_about(event: Object, kind: str, name: str) -> bool:
    about = event.get("involvedObject") or {}
    return (about.get("kind"), about.get("name")) == (kind, name)


def _order(event: Object) -> tuple[str, int]:
    """Return a key to sort events by: times are whole seconds, and within one second the API server's count decides."""
    version = str(event["metadata"].get("resourceVersion", ""))
    return str(event.get("lastTimestamp") or ""), int(version) if version.isdecimal() else 0


def _tell(console: Console, events: Iterable[Object], told: set[str], as_json: bool) -> None:
    for event in events:
        told.add(event["metadata"]["uid"])
        if as_json:
            print(json.dumps(event), flush=True)
            continue
        style = "yellow" if event.get("type") == "Warning" else ""
        words = Text.assemble((f"{_clock(event)} ", "dim"), (f"{event.get('reason', '')}: ", "bold"))
        console.print(words + Text(str(event.get("message", "")), style=style))


def _clock(event: Object) -> str:
    """Return the event's time by this machine's clock."""
    try:
        at = datetime.fromisoformat(str(event.get("lastTimestamp")).replace("Z", "+00:00"))
    except ValueError:
        return "--:--:--"
    return time.strftime("%H:%M:%S", time.localtime(at.timestamp()))
