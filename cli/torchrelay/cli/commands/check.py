"""`torchrelay check`: real ranks, set-up and a few steps, the protection report, and nothing left behind.

The data loaders are cut to a few batches, so that an epoch's end, an evaluation and a save come within seconds, and all of it
happens in a copy of the working folder. If a script fails that way, it is run again as it is: a check never fails where a
run would not. Once the ranks stand still, one more process reads the journals of the first two ranks, as a joiner would.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import secrets
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from torchrelay.cli.command_line.options import RunOptions
from torchrelay.cli.commands import gone_through
from torchrelay.cli.commands.gone_through import GoneThrough
from torchrelay.cli.controller_client.follow import JobFollower
from torchrelay.cli.display import report_view
from torchrelay.cli.display.answers import print_json
from torchrelay.cli.display.summary import RunSummary
from torchrelay.cli.display.teller import Teller, make_console
from torchrelay.cli.folders import folder, working_folder
from torchrelay.cli.folders.journals import own_journals
from torchrelay.cli.run.local_job import LocalJob
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.machine.owned_folder import owned_folder
from torchrelay.protocol.messages import Coverage
from torchrelay.protocol.names import (
    EXIT_CHECK_PARTLY,
    EXIT_CHECK_UNPROTECTED,
    MADE_FILES,
    SEEN_FILE,
)
from torchrelay.protocol.words.level import Level

EXIT_FAILED = 1
SHOWN_LINES = 30
BOTH_STREAMS = 3
_STATUS: dict[str, int] = {Level.PROTECTED: 0, Level.PARTLY: EXIT_CHECK_PARTLY}


@dataclass(frozen=True)
class CheckJson:
    """`torchrelay check --json`, documented in docs/cli.md. `reason`: how the job ended; `coverage`: None if nothing is known."""

    exit_code: int
    world_size: int
    steps: int
    reason: str
    coverage: Coverage | None
    gone_through: GoneThrough


@dataclass(frozen=True)
class CheckRun:
    """One run of the ranks. `code`: its exit code; `is_late`: ended by --timeout; `is_over`: the user has ended the command, or
    nothing was started. `output`: the last lines of what each rank said.
    """

    summary: RunSummary
    code: int
    is_late: bool
    is_over: bool
    seen: GoneThrough
    output: str

    @property
    def failed(self) -> bool:
        return not self.summary.held and self.code != 0 and not self.is_late

    @property
    def says_nothing(self) -> bool:
        """Return whether an uncut run might say more: this one has failed, or made no step that could be looked at."""
        if self.is_over or self.is_late:
            return False
        coverage = self.summary.coverage
        no_step = self.summary.boundary < 1 and self.summary.protection not in (Level.PENDING, Level.UNPROTECTED)
        return self.failed or (no_step and (coverage is None or not coverage.gaps))


async def check(options: RunOptions, command: tuple[str, ...], timeout_s: float, as_json: bool) -> int:
    """Run the check, print the report, and return the exit code. Raises UserError before anything was started."""
    options = dataclasses.replace(options, events=options.events.absolute() if options.events else None)
    attempt = await _in_a_copy(options, command, timeout_s) if options.check_batches else None
    if attempt is None or attempt.says_nothing:
        cut = attempt
        attempt = await _attempt(dataclasses.replace(options, check_batches=0), command, timeout_s)
        if cut is not None and not attempt.failed:
            attempt = dataclasses.replace(attempt, seen=dataclasses.replace(attempt.seen, cut_failed=_why(cut)))
    if attempt.is_over:
        return attempt.code
    return _conclude(options, attempt, as_json)


def _why(cut: CheckRun) -> str:
    """Return why a script with cut loaders said nothing."""
    return cut.summary.reason or "no step was made"


async def _in_a_copy(options: RunOptions, command: tuple[str, ...], timeout_s: float) -> CheckRun:
    """Run with cut loaders, in a copy of the working folder if that is small enough. Report places as in the original."""
    own = Path.cwd()
    with owned_folder("check") as made:
        copy = made / "work"
        try:
            working_folder.copy(own, copy)
        except UserError:
            return await _attempt(options, command, timeout_s)
        script = options.script if options.given.module else working_folder.in_copy(options.script, own, copy)
        with _inside(copy):
            attempt = await _attempt(dataclasses.replace(options, script=script), command, timeout_s)
    return _told_as(attempt, str(copy), str(own))


@contextmanager
def _inside(place: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(place)
    try:
        yield
    finally:
        os.chdir(before)


def _told_as(attempt: CheckRun, copy: str, own: str) -> CheckRun:
    """Replace paths in the copy by the user's own paths."""
    summary = attempt.summary
    seen = attempt.seen
    coverage = summary.coverage
    if coverage is not None:
        told = report_view.replaced(coverage, copy, own)
        summary = dataclasses.replace(summary, coverage=told, reason=summary.reason.replace(copy, own))
    return dataclasses.replace(
        attempt, summary=summary, seen=seen.told_as(copy, own), output=attempt.output.replace(copy, own)
    )


async def _attempt(options: RunOptions, command: tuple[str, ...], timeout_s: float) -> CheckRun:
    run_id = secrets.token_hex(4)
    run_folder = folder.make_run_folder(folder.state_folder(os.environ), run_id)
    logs = run_folder / "logs"
    logs.mkdir()
    options = dataclasses.replace(options, redirects=(BOTH_STREAMS,) * options.nproc_per_node, log_dir=logs)
    teller = Teller(sys.stderr, os.environ, quiet=True)
    try:
        with own_journals(run_id, run_folder), JobFollower(teller, options.events) as follower:
            job = LocalJob(options, run_id, run_folder, secrets.token_hex(32).encode(), follower, teller)
            limit = asyncio.ensure_future(_stop_late(job, timeout_s))
            try:
                code = await job.run(command)
            finally:
                limit.cancel()
            is_over = bool(job.stopped_by) or not job.was_started
            is_late = limit.done() and not limit.cancelled()
            seen = gone_through.read(run_folder / SEEN_FILE, run_folder / MADE_FILES, bool(options.check_batches))
            return CheckRun(follower.summary, code, is_late, is_over, seen, _output(logs))
    finally:
        teller.close()
        remove_made(run_folder / MADE_FILES)
        folder.remove_run(run_folder)


async def _stop_late(job: LocalJob, timeout_s: float) -> None:
    await asyncio.sleep(timeout_s)
    await job.end(signal.SIGKILL)


def _conclude(options: RunOptions, attempt: CheckRun, as_json: bool) -> int:
    summary = attempt.summary
    failed = attempt.failed
    coverage = summary.coverage
    if attempt.is_late and not summary.held and coverage is not None:
        why = f"cut off by --timeout before {options.check_steps} steps were done: {coverage.reason}"
        coverage = dataclasses.replace(coverage, level=Level.UNPROTECTED.value, reason=why)
    if attempt.is_late and summary.held and coverage is not None and not coverage.rehearsed:
        coverage = dataclasses.replace(coverage, rehearsed=("not rehearsed: --timeout was over before that was done",))
    status = _STATUS.get(coverage.level, EXIT_CHECK_UNPROTECTED) if coverage else EXIT_CHECK_UNPROTECTED
    if failed:
        status = EXIT_FAILED
    if as_json:
        steps = max(summary.boundary, 0)
        print_json(CheckJson(status, options.world_size, steps, summary.reason, coverage, attempt.seen))
    else:
        _print(make_console(sys.stdout), coverage, attempt, options)
    if failed and attempt.output:
        print(attempt.output, file=sys.stderr, flush=True)
    return status


def _print(console: Console, coverage: Coverage | None, attempt: CheckRun, options: RunOptions) -> None:
    summary = attempt.summary
    if attempt.failed:
        console.print(f"the script failed, so that there is nothing to say about its protection: {summary.reason}")
    elif coverage is None:
        console.print(f"protection  not protected: {summary.reason or 'the job ended before anything was known'}")
    else:
        console.print(report_view.report_view(coverage, options.world_size))
        for part in gone_through.view(attempt.seen):
            console.print(part)
        console.print(_next(coverage, options))


def _next(coverage: Coverage, options: RunOptions) -> str:
    """Return what the user should do before relying on the protection."""
    if coverage.level == Level.UNPROTECTED:
        return ""
    script = f"-m {options.script}" if options.given.module else options.script
    return f"\nbefore you rely on it: torchrelay drill --nproc-per-node {max(options.nproc_per_node, 2)} {script} ..."


def _output(logs: Path) -> str:
    """Return the last lines that the ranks printed."""
    parts = []
    for path in sorted(logs.rglob("*.log")):
        lines = path.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
        if lines:
            parts += [f"--- rank {path.parent.name}, {path.stem} ---", *lines]
    return "\n".join(parts)


def remove_made(listed: Path) -> None:
    """Remove the files that the ranks have made, and folders that are empty then. A missing file is no error."""
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
