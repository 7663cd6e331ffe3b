"""`torchrelay check`: real ranks, set-up and a few steps, the protection report, and nothing left behind."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import secrets
import signal
import sys
from pathlib import Path

from rich.console import Console

from torchrelay.cli import folder, report_view
from torchrelay.cli.follow import Follower
from torchrelay.cli.journals import own_journals
from torchrelay.cli.launch import Job
from torchrelay.cli.options import RunOptions
from torchrelay.cli.summary import Summary
from torchrelay.cli.teller import Teller, make_console
from torchrelay.protocol.messages import Coverage
from torchrelay.protocol.names import (
    EXIT_CHECK_PARTLY,
    EXIT_CHECK_UNPROTECTED,
    MADE_FILES,
    PARTLY,
    PROTECTED,
    UNPROTECTED,
)

EXIT_FAILED = 1
SHOWN_LINES = 30
BOTH_STREAMS = 3
_STATUS = {PROTECTED: 0, PARTLY: EXIT_CHECK_PARTLY}


async def check(options: RunOptions, command: tuple[str, ...], timeout_s: float, as_json: bool) -> int:
    """Runs the check and prints the report; returns the exit code. Raises UserError before anything was started."""
    run_id = secrets.token_hex(4)
    run_folder = folder.make_run_folder(folder.state_folder(os.environ), run_id)
    logs = run_folder / "logs"
    logs.mkdir()
    options = dataclasses.replace(options, redirects=(BOTH_STREAMS,) * options.nproc_per_node, log_dir=logs)
    teller = Teller(sys.stderr, os.environ, quiet=True)
    try:
        with own_journals(run_id, run_folder), Follower(teller, options.events) as follower:
            job = Job(options, run_id, run_folder, secrets.token_hex(32).encode(), follower, teller)
            limit = asyncio.ensure_future(_stop_late(job, timeout_s))
            try:
                code = await job.run(command)
            finally:
                limit.cancel()
            if job.stopped_by or not job.was_started:
                return code
            is_late = limit.done() and not limit.cancelled()
            return _conclude(options, follower.summary, code, logs, is_late, as_json)
    finally:
        teller.close()
        remove_made(run_folder / MADE_FILES)
        folder.remove_run(run_folder)


async def _stop_late(job: Job, timeout_s: float) -> None:
    await asyncio.sleep(timeout_s)
    await job.end(signal.SIGKILL)


def _conclude(options: RunOptions, summary: Summary, code: int, logs: Path, is_late: bool, as_json: bool) -> int:
    failed = not summary.held and code != 0 and not is_late
    coverage = summary.coverage
    if is_late and not summary.held and coverage is not None:
        why = f"cut off by --timeout before {options.check_steps} steps were done: {coverage.reason}"
        coverage = dataclasses.replace(coverage, level=UNPROTECTED, reason=why)
    status = _STATUS.get(coverage.level, EXIT_CHECK_UNPROTECTED) if coverage else EXIT_CHECK_UNPROTECTED
    if failed:
        status = EXIT_FAILED
    if as_json:
        print(json.dumps(as_dict(coverage, summary, status, options.world_size)), flush=True)
    else:
        _print(make_console(sys.stdout), coverage, summary, failed, options)
    if failed:
        _show_output(logs)
    return status


def as_dict(coverage: Coverage | None, summary: Summary, status: int, world_size: int) -> dict[str, object]:
    """The object of `torchrelay check --json`, documented in docs/cli.md."""
    report = dataclasses.asdict(coverage) if coverage is not None else None
    steps = max(summary.boundary, 0)
    return {"exit_code": status, "world_size": world_size, "steps": steps, "reason": summary.reason, "report": report}


def _print(console: Console, coverage: Coverage | None, summary: Summary, failed: bool, options: RunOptions) -> None:
    if failed:
        console.print(f"the script failed, so that there is nothing to say about its protection: {summary.reason}")
    elif coverage is None:
        console.print(f"protection  not protected: {summary.reason or 'the job ended before anything was known'}")
    else:
        console.print(report_view.report_view(coverage, options.world_size))


def _show_output(logs: Path) -> None:
    """The last lines of what the ranks said."""
    for path in sorted(logs.rglob("*.log")):
        lines = path.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
        if lines:
            rank, stream = path.parent.name, path.stem
            print(f"--- rank {rank}, {stream} ---", *lines, sep="\n", file=sys.stderr, flush=True)


def remove_made(listed: Path) -> None:
    """Removes what the ranks have made: files, and folders that are empty then. What is gone already is no matter."""
    try:
        made = list(dict.fromkeys(listed.read_bytes().split(b"\n")))
    except FileNotFoundError:
        return
    for path in sorted(filter(None, made), key=len, reverse=True):
        try:
            if os.path.isdir(path) and not os.path.islink(path):
                os.rmdir(path)
            else:
                os.unlink(path)
        except OSError:
            continue  # gone, not empty, or not ours to remove: it stays as it is
