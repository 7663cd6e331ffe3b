"""What `kubectl torchrelay` shows, made of a cluster's resources. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from torchrelay.cli.cluster.times import goodput, steps_per_s, time_s
from torchrelay.cli.display import render
from torchrelay.cli.display.fitting_table import table_of
from torchrelay.dashboard import words
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.changed_by import changed_by
from torchrelay.protocol.kube.holders import unpack_holders
from torchrelay.protocol.words.level import Level
from torchrelay.protocol.words.phases import ACHIEVED

Object = dict[str, Any]
MIGRATIONS_SHOWN = 5
"""In `top`."""


def status_of(found: Object) -> Object:
    """Return an object's status; empty if nobody has written one yet."""
    status: Object = found.get("status") or {}
    return status


def place(found: Object) -> tuple[str, str]:
    """Return namespace and name: two namespaces can have a job of the same name."""
    return found["metadata"].get("namespace", ""), found["metadata"]["name"]


def ranks_on(jobs: Iterable[Object], node: str) -> dict[str, list[int]]:
    """Return the ranks that live on a node, by job as NAMESPACE/NAME. Raises FrameError for a job whose ranks cannot be read."""
    found: dict[str, list[int]] = {}
    for job in jobs:
        meta = job["metadata"]
        status = status_of(job)
        if packed := status.get("holders"):  # of a large job `ranks` has some alone
            ranks = [rank for rank, _, where in unpack_holders(packed) if where == node]
        else:
            ranks = [r["rank"] for r in status.get("ranks", ()) if r.get("node") == node]
        if ranks and not status.get("finishedAt"):
            found[f"{meta.get('namespace', '')}/{meta['name']}"] = sorted(ranks)
    return found


def _protection(status: Object) -> Text:
    value = status.get("protection") or Level.PENDING.value
    known = value in {level.value for level in Level}
    return Text(value, style=render.LEVEL_STYLES[Level(value)] if known else "")


def jobs_view(jobs: Sequence[Object], everywhere: bool) -> RenderableType:
    """Return a table with one line for each job."""
    table = table_of(
        *(("namespace",) if everywhere else ()), "job", "phase", "ranks", "step", "spares", "protection", "why"
    )
    for job in jobs:
        meta = job["metadata"]
        status = status_of(job)
        where = (meta.get("namespace", ""),) if everywhere else ()
        spares = f"{status.get('sparesWarm', 0)} of {status.get('spares', 0)} ready"
        step = str(status.get("step", "-"))
        table.add_row(
            *where,
            meta["name"],
            status.get("phase", "-"),
            str(status.get("worldSize", "-")),
            step,
            spares,
            _protection(status),
            Text(status.get("protectionReason", "")),
        )
    return table


def top_view(jobs: Sequence[Object], migrations: Sequence[Object], now_s: float, everywhere: bool) -> RenderableType:
    """Return the whole view of `top`: jobs that run at `now_s`, by the wall clock, and the latest migrations."""
    foot = Text("q ends this view, and no job; every rank: kubectl torchrelay dashboard", style="dim")
    running = [job for job in jobs if not status_of(job).get("finishedAt")]
    if not running:
        return Group(Text("no job here is torchrelay's; this shows the next one that is"), foot)
    where = ("namespace",) if everywhere else ()
    table = table_of(*where, "job", "phase", "ranks", "step", "steps/s", "goodput", "spares", "protection", "why")
    for job in sorted(running, key=place):
        s = status_of(job)
        rate = steps_per_s(job)
        useful = goodput(job, now_s)
        table.add_row(
            *(place(job)[:1] if everywhere else ()),
            job["metadata"]["name"],
            s.get("phase", "-"),
            _states(s),
            str(s.get("step", "-")),
            "-" if rate is None else f"{rate:.1f}",
            "-" if useful is None else words.percent(useful),
            f"{s.get('sparesWarm', 0)} of {s.get('spares', 0)} ready",
            _protection(s),
            Text(s.get("protectionReason", "")),
        )
    begun = [m for m in migrations if status_of(m)]
    latest = sorted(begun, key=lambda m: str(status_of(m).get("startedAt", "")))[-MIGRATIONS_SHOWN:]
    return Group(table, *((Text(), migrations_view(latest)) if latest else ()), foot)


def _states(status: Object) -> str:
    """Say how many ranks there are, and how many of them do not train."""
    odd = [f"{n} {state}" for state, n in (status.get("rankStates") or {}).items() if n and state != "running"]
    return " ".join((str(status.get("worldSize", "-")), *([f"({', '.join(odd)})"] if odd else [])))


def job_view(job: Object) -> RenderableType:
    """Return all that is known of one job."""
    meta = job["metadata"]
    status = status_of(job)
    head = Table.grid(padding=(0, 2))
    head.add_row("job", Text.assemble((meta["name"], "bold"), f" in {meta.get('namespace', '')}"))
    states = ", ".join(f"{number} {state}" for state, number in (status.get("rankStates") or {}).items() if number)
    head.add_row("ranks", f"{status.get('worldSize', '-')}{f': {states}' if states else ''}")
    head.add_row("step", str(status.get("step", "-")))
    head.add_row("spares", f"{status.get('sparesWarm', 0)} of {status.get('spares', 0)} ready")
    why = status.get("protectionReason", "")
    head.add_row("protection", Text.assemble(_protection(status), f": {why}" if why else ""))
    last = status.get("lastMigration", "")
    head.add_row("migrations", Text(f"{status.get('migrations', 0)}{f'; last: {last}' if last else ''}"))
    parts: list[RenderableType] = [head]
    if ranks := status.get("ranks"):
        table = table_of("rank", "pod", "node", "state")
        for r in ranks:
            state = Text(r.get("state", "-"), style=render.STATE_STYLES.get(r.get("state", ""), "default"))
            table.add_row(str(r["rank"]), r.get("pod", "-"), r.get("node", "-"), state)
        parts += [Text(), table]
    return Group(*parts)


def migrations_view(migrations: Sequence[Object]) -> RenderableType:
    """Return a table with one line for each migration, the newest last, with who asked for it."""
    table = table_of("migration", "rank", "kind", "outcome", "downtime", "from", "to", "asked by", "reason")
    for found in sorted(migrations, key=lambda m: str(status_of(m).get("startedAt", ""))):
        s = status_of(found)
        outcome = s.get("outcome", "")
        shown = outcome or s.get("phase", "") or "waiting"
        style = "green" if outcome in ACHIEVED else "red" if outcome else "yellow"
        downtime = words.duration(float(s["downtimeSeconds"])) if "downtimeSeconds" in s else "-"
        ranks = render.listed(s.get("ranks") or ([s["rank"]] if "rank" in s else ())) or "-"
        why = s.get("reason") or found.get("spec", {}).get("reason", "")
        row = (s.get("kind", "-"), Text(shown, style=style), downtime, s.get("fromPod", "-"), s.get("toPod", "-"))
        table.add_row(found["metadata"]["name"], ranks, *row, s.get("requestedBy", ""), Text(why))
    return table


def migration_view(found: Object) -> RenderableType:
    """Return the story of one migration, as its object has it."""
    s = status_of(found)
    spec = found.get("spec", {})
    rank = render.listed(s.get("ranks") or ([s["rank"]] if "rank" in s else ()))
    head = Table.grid(padding=(0, 2))
    facts = (
        ("migration", found["metadata"]["name"]),
        ("job", spec.get("job", "")),
        ("ranks", rank),
        ("kind", s.get("kind", "")),
        ("outcome", s.get("outcome") or s.get("phase") or "waiting"),
        ("asked by", s.get("requestedBy", "")),
        ("asked for", spec.get("reason", "")),
        ("from, to", " → ".join(filter(None, (s.get("fromPod", ""), s.get("toPod", ""))))),
        ("why", s.get("reason", "")),
        ("downtime", words.duration(float(s["downtimeSeconds"])) if "downtimeSeconds" in s else ""),
        ("steps redone", str(s.get("stepsRedone", ""))),
    )
    for name, value in facts:
        if value:
            head.add_row(name, Text(value))
    parts: list[RenderableType] = [head]
    if s.get("phases"):
        table = table_of("phase", "began", "seconds")
        for p in s["phases"]:
            table.add_row(render.phase(p["phase"]), p["at"], f"{p['seconds']:.2f}" if "seconds" in p else "-")
        parts += [Text(), table]
    if s.get("rungs"):
        parts += [Text(), *(Text(f"{r['rung']}: {r['outcome']}{_because(r)}") for r in s["rungs"])]
    if s.get("decisions"):
        parts += [Text(), Text("What was decided", style="bold"), *(Text(f"  {text}") for text in s["decisions"])]
    return Group(*parts)


def _because(rung: Object) -> str:
    return f": {rung['reason']}" if rung.get("reason") else ""


def quarantines_view(found: Sequence[Object]) -> RenderableType:
    table = table_of("name", "node", "device", "until", "asked by", "reason", "cleared")
    for q in found:
        spec = q["spec"]
        by = (q["metadata"].get("annotations") or {}).get(kube.REQUESTED_BY, "")
        until = spec.get("until", "")
        reason = Text(spec.get("reason", ""))
        cleared = Text(spec.get("cleared", ""))
        table.add_row(q["metadata"]["name"], spec["node"], spec.get("device", ""), until, by, reason, cleared)
    return table


def holds(quarantine: Object, now_s: float) -> bool:
    """Return whether a Quarantine is in force: neither cleared nor over. A time that cannot be read counts as none."""
    spec = quarantine["spec"]
    until_s = time_s(spec.get("until") or "")
    return not spec.get("cleared") and (not until_s or now_s < until_s)


def pools_view(pools: Sequence[Object]) -> RenderableType:
    table = table_of("pool", "job", "wanted", "pods ready", "processes warm", "changed by", "why")
    for pool in pools:
        spec = pool["spec"]
        s = status_of(pool)
        numbers = (str(s.get("wanted", spec.get("spares", 0))), str(s.get("ready", 0)), str(s.get("warm", 0)))
        why = Text(s.get("trouble", ""))
        table.add_row(pool["metadata"]["name"], spec.get("job", ""), *numbers, changed_by(pool), why)
    return table
