"""What each command of `kubectl torchrelay` does: reads resources, or makes one and waits for what becomes of it."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from rich.console import Console, RenderableType

from torchrelay.cli.cluster import view
from torchrelay.cli.cluster.api import JOBS, MIGRATIONS, POOLS, QUARANTINES, Cluster, Object
from torchrelay.cli.cluster.report import report_of
from torchrelay.cli.display import narrate
from torchrelay.cli.display.answers import ENDED, FREE, NOT_FREE, RUNNING, DrainJson, RanksLeft, StopJson, print_json
from torchrelay.cli.display.render import count, listed
from torchrelay.cli.display.teller import make_console
from torchrelay.cli.history.cost import Assumed
from torchrelay.cli.history.report import ReportForm, show
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.object_names import beginning
from torchrelay.protocol.names import EXIT_USAGE
from torchrelay.protocol.words.phases import ACHIEVED

EXIT_NOT_DONE = 1
NOBODY_S = 15.0
"""A controller that leads takes a Migration up within a second."""
REFUSED = "refused"
PROGRAM = "kubectl torchrelay"


async def status(cluster: Cluster, job: str | None, everywhere: bool, as_json: bool, watch: bool) -> int:
    """Show all jobs, or all of one; with `watch` again after each change."""
    if not watch:
        shown = [await cluster.get(JOBS, job)] if job else await cluster.all(JOBS)
        _show_jobs(make_console(sys.stdout), shown, job, everywhere, as_json)
        return 0
    async with aclosing(cluster.states(JOBS)) as states:
        async for found in states:
            shown = [one for one in found if job in (None, one["metadata"]["name"])]
            if job is not None and not shown:
                raise UserError(f"there is no job {job} in namespace {cluster.namespace}\nhint: {PROGRAM} status -A")
            console = make_console(sys.stdout)
            if console.is_terminal:
                console.clear()
            _show_jobs(console, shown, job, everywhere, as_json)
    return 0


def _show_jobs(console: Console, jobs: Sequence[Object], job: str | None, everywhere: bool, as_json: bool) -> None:
    if not as_json and not jobs:
        console.print("no job here is torchrelay's")
        console.print(narrate.hint(f"{PROGRAM} status -A"))
        return
    _show(console, view.job_view(jobs[0]) if job else view.jobs_view(jobs, everywhere), list(jobs), as_json)


def _show(console: Console, shown: RenderableType, facts: Sequence[Object], as_json: bool) -> None:
    """Show something to a person, or print its facts: the resources themselves, one a line."""
    if not as_json:
        console.print(shown)
        return
    _answer(facts, as_json)


def _answer(facts: Sequence[Object], as_json: bool) -> None:
    """Print the resources that a command has made or changed, one a line, for programs only. People are told on stderr."""
    for fact in facts if as_json else ():
        print(json.dumps(fact), flush=True)


async def history(cluster: Cluster, job: str | None, as_json: bool) -> int:
    found = [m for m in await cluster.all(MIGRATIONS) if job in (None, m["spec"]["job"])]
    if not found and job is not None:
        await cluster.get(JOBS, job)  # a wrong name is no job to which nothing happened
    if not found and not as_json:
        make_console(sys.stdout).print("nothing was moved, and nothing was lost")
        return 0
    _show(make_console(sys.stdout), view.migrations_view(found), found, as_json)
    return 0


async def explain(cluster: Cluster, migration: str | None, as_json: bool) -> int:
    """Tell the story of a migration, or of the latest. Raises UserError if there is none."""
    if migration is not None:
        found = await cluster.get(MIGRATIONS, migration)
    else:
        newest_last = sorted(await cluster.all(MIGRATIONS), key=lambda m: m["metadata"].get("creationTimestamp", ""))
        if not newest_last:
            raise UserError(
                f"namespace {cluster.namespace} has no migration: nothing was lost, and nothing was moved\n"
                f"hint: {PROGRAM} status -A"
            )
        found = newest_last[-1]
    _show(make_console(sys.stdout), view.migration_view(found), [found], as_json)
    return 0


async def report(cluster: Cluster, job: str, assumed: Assumed, form: ReportForm, picture: Path | None = None) -> int:
    """Say what protection cost a job and what it saved. Raises UserError if there is no such job."""
    found = await cluster.get(JOBS, job)
    moves = [m for m in await cluster.all(MIGRATIONS) if m["spec"]["job"] == job]
    name = found.get("spec", {}).get("pool") or job
    pool = next((p for p in await cluster.all(POOLS) if p["metadata"]["name"] == name), None)
    show(report_of(found, moves, pool, time.time(), assumed), form, "Job", picture)
    return 0


async def stop(cluster: Cluster, job: str, as_json: bool = False) -> int:
    """Return 0 if it has ended. Raises UserError otherwise: whoever owns the job's pods ends it, with a command that is named."""
    found = await cluster.get(JOBS, job)
    if ended := view.status_of(found).get("finishedAt"):
        make_console(sys.stderr).print(narrate.line(f"job {job} has ended already, at {ended}"))
        if as_json:
            print_json(StopJson(_place(cluster, job), ENDED, f"at {ended}"))
        return 0
    kind, _, name = found.get("spec", {}).get("owner", "").partition("/")
    if not name or kind == "Pod":
        which = "it is over once its pods are deleted"
        command = f"pods -l {kube.JOB}={job}"
    else:
        which = f"{kind} {name} would make its pods again; it is over once that is deleted"
        command = f"{kind.lower()} {name}"
    command = f"kubectl delete {command} -n {cluster.namespace}"
    if as_json:
        print_json(StopJson(_place(cluster, job), RUNNING, which, command))
    raise UserError(f"job {job} is not ended by this command: {which}\nhint: {command}")


def _place(cluster: Cluster, job: str) -> str:
    return f"{cluster.namespace}/{job}"


async def move(cluster: Cluster, job: str, spec: Object, wait: bool, as_json: bool = False) -> int:
    """Make a Migration, wait for its end, and return 0 if it is done, 1 if not, 2 if it is refused. Raises UserError if there is no
    such job."""
    console = make_console(sys.stderr)
    await cluster.get(JOBS, job)  # else it would wait for ever
    name = f"{beginning(job, 40)}-{secrets.token_hex(3)}"
    made = await cluster.create(MIGRATIONS, name, {"job": job, **spec})
    console.print(narrate.line(f"migration {name} is asked for"))
    if not wait:
        console.print(narrate.hint(f"{PROGRAM} explain {name} -n {cluster.namespace}"))
        _answer([made], as_json)
        return 0
    return await _until_over(console, cluster, name, as_json)


async def _until_over(console: Console, cluster: Cluster, name: str, as_json: bool) -> int:
    patience = asyncio.get_running_loop().call_later(NOBODY_S, _say_that_nobody_acts, console, name)
    try:
        return await _follow(console, cluster, name, as_json, patience)
    finally:
        patience.cancel()


def _say_that_nobody_acts(console: Console, name: str) -> None:
    text = f"no controller has taken up migration {name} for {NOBODY_S:g} s; it is carried out as soon as one does"
    console.print(narrate.line(text, "yellow"))
    console.print(narrate.hint(f"kubectl get pods -n {kube.SYSTEM_NAMESPACE}"))


async def _follow(console: Console, cluster: Cluster, name: str, as_json: bool, patience: asyncio.TimerHandle) -> int:
    told = ""
    async with aclosing(cluster.states(MIGRATIONS)) as states:
        async for found in states:
            own = next((one for one in found if one["metadata"]["name"] == name), None)
            if own is None:
                console.print(narrate.line(f"somebody has deleted migration {name}", "red"))
                return EXIT_NOT_DONE
            s = view.status_of(own)
            outcome = s.get("outcome", "")
            reason = s.get("reason", "")
            if outcome:
                style = "green" if outcome in ACHIEVED else "red"
                console.print(narrate.line(f"{name}: {outcome}{f': {reason}' if reason else ''}", style))
                console.print(narrate.hint(f"{PROGRAM} explain {name} -n {cluster.namespace}"))
                _answer([own], as_json)
                return 0 if outcome in ACHIEVED else EXIT_USAGE if outcome == REFUSED else EXIT_NOT_DONE
            if s:
                patience.cancel()
            now = s.get("phase") or (f"waits: {reason}" if reason else "")
            if now and now != told:
                told = now
                console.print(narrate.line(f"  {now}", "dim"))
    return EXIT_NOT_DONE


async def drain(cluster: Cluster, node: str, reason: str, timeout_s: float | None, as_json: bool = False) -> int:
    """Put a node into quarantine, and wait until no rank of any job lives there: 0 it is free, 1 it is not."""
    console = make_console(sys.stderr)
    await _bar(cluster, node, "", reason)
    try:
        await asyncio.wait_for(_until_free(console, cluster, node), timeout_s)
    except asyncio.TimeoutError:
        left = view.ranks_on(await cluster.all(JOBS), node)
        if left:
            console.print(narrate.line(f"{node} is not free: {_ranks(left)} still there", "red"))
            console.print(narrate.hint(f"{PROGRAM} status --all-namespaces"))
            if as_json:
                ranks = tuple(RanksLeft(job, tuple(held)) for job, held in sorted(left.items()))
                print_json(DrainJson(node, NOT_FREE, f"{_ranks(left)} still there", ranks))
            return EXIT_NOT_DONE
    console.print(narrate.line(f"{node} is free: no rank needs it any more", "green"))
    console.print(narrate.hint(f"{PROGRAM} quarantine clear {node}"))
    if as_json:
        print_json(DrainJson(node, FREE, "no rank needs it any more"))
    return 0


async def _until_free(console: Console, cluster: Cluster, node: str) -> None:
    told: dict[str, list[int]] = {}
    async with aclosing(cluster.states(JOBS)) as states:
        async for found in states:
            left = view.ranks_on(found, node)
            if not left:
                return
            if left != told:
                told = left
                console.print(narrate.line(f"  {_ranks(left)} to move", "dim"))


def _ranks(by_job: dict[str, list[int]]) -> str:
    return "; ".join(f"{job}: {count(len(r), 'rank')} ({listed(r[:8])})" for job, r in sorted(by_job.items()))


async def _bar(cluster: Cluster, node: str, device: str, reason: str) -> Object:
    """Return the Quarantine that holds from now on: one that does already, or one that was over, or a new one."""
    subject = (node, device)
    there = [q for q in await cluster.all(QUARANTINES) if (q["spec"]["node"], q["spec"].get("device", "")) == subject]
    now_s = time.time()
    if held := next((q for q in there if view.holds(q, now_s)), None):
        return held
    if there:
        again = {"spec": {"cleared": None, "until": None, "reason": reason}}
        return await cluster.patch(QUARANTINES, there[0]["metadata"]["name"], again)
    if not await cluster.has_node(node):
        raise UserError(f"there is no node {node}\nhint: kubectl get nodes")
    name = f"{node}-{secrets.token_hex(3)}" if device else node
    return await cluster.create(
        QUARANTINES, name, {"node": node, "reason": reason, **({"device": device} if device else {})}
    )


async def quarantine_list(cluster: Cluster, as_json: bool) -> int:
    found = await cluster.all(QUARANTINES)
    if not found and not as_json:
        make_console(sys.stdout).print("nothing is in quarantine")
        return 0
    _show(make_console(sys.stdout), view.quarantines_view(found), found, as_json)
    return 0


async def quarantine_add(cluster: Cluster, node: str, device: str, reason: str, as_json: bool = False) -> int:
    held = await _bar(cluster, node, device, reason)
    what = f"{device} on {node}" if device else node
    console = make_console(sys.stderr)
    console.print(narrate.line(f"{what} is given no rank from now on; ranks there move to spares"))
    console.print(narrate.hint(f"{PROGRAM} quarantine clear {held['metadata']['name']}"))
    _answer([held], as_json)
    return 0


async def quarantine_clear(cluster: Cluster, subject: str, reason: str, as_json: bool = False) -> int:
    """Delete the Quarantines of a subject. Raises UserError if there is none.

    `subject`: a node, a device, or the name of a Quarantine.
    A deleted resource can tell nothing: so the reason is written into it before, and the webhook adds who gives it.
    Who may not write it clears the quarantine all the same.
    """
    found = [
        q
        for q in await cluster.all(QUARANTINES)
        if subject in (q["metadata"]["name"], q["spec"].get("device") or q["spec"]["node"])
    ]
    if not found:
        raise UserError(f"{subject} is not in quarantine\nhint: {PROGRAM} quarantine list")
    console = make_console(sys.stderr)
    cleared = []
    for q in found:
        name = q["metadata"]["name"]
        try:
            cleared.append(await cluster.patch(QUARANTINES, name, {"spec": {"cleared": reason}}))
        except UserError as e:  # it is to end all the same
            console.print(narrate.line(f"jobs are not told who clears {name}, and why: {e}", "yellow"))
            cleared.append(q)
    for q in found:
        await cluster.delete(QUARANTINES, q["metadata"]["name"])
    console.print(narrate.line(f"{subject} may be used again", "green"))
    _answer(cleared, as_json)
    return 0


async def spares(cluster: Cluster, job: str | None, as_json: bool) -> int:
    found = [p for p in await cluster.all(POOLS) if job in (None, p["spec"].get("job"), p["metadata"]["name"])]
    if not found and job is not None:
        await cluster.get(JOBS, job)
    if not found and not as_json:
        make_console(sys.stdout).print("there is no pool of spares here")
        return 0
    _show(make_console(sys.stdout), view.pools_view(found), found, as_json)
    return 0


async def spares_add(cluster: Cluster, number: int, job: str, as_json: bool = False) -> int:
    """Raise the number of a job's pool. Raises UserError if there is no such job, or it has no pool."""
    wanted = (await cluster.get(JOBS, job)).get("spec", {}).get("pool") or job
    pool = await cluster.get(POOLS, wanted)
    before = int(pool["spec"].get("spares", 0))
    larger = await cluster.patch(POOLS, wanted, {"spec": {"spares": before + number}})
    console = make_console(sys.stderr)
    console.print(
        narrate.line(f"{count(number, 'pod')} more for spares: there are to be {before + number} from now on")
    )
    console.print(narrate.hint(f"{PROGRAM} spares list {job} -n {cluster.namespace}"))
    _answer([larger], as_json)
    return 0
