"""`torchrelay migrate`: a planned migration, followed to its end."""

from __future__ import annotations

import os
import sys

from rich.console import Console

from torchrelay.cli.controller_client.control import Control
from torchrelay.cli.display import narrate
from torchrelay.cli.display.answers import ACCEPTED, NO_ANSWER, REFUSED, MigrateJson, print_json
from torchrelay.cli.display.summary import MigrationSummary
from torchrelay.cli.display.teller import make_console
from torchrelay.cli.folders import folder
from torchrelay.cli.folders.meant_job import meant_job
from torchrelay.cli.jobs.following import follow
from torchrelay.protocol.errors import ChannelClosedError
from torchrelay.protocol.messages import JobStatus
from torchrelay.protocol.names import EXIT_USAGE
from torchrelay.protocol.words.phases import ABANDONED, COMMITTED

EXIT_ABANDONED = 1
OVER = "the job ended before the migration did"
ANOTHER = "another rank was lost meanwhile"


async def migrate(rank: int, reason: str, wanted: str | None, wait: bool, as_json: bool = False) -> int:
    """Move a rank. Return 0 if committed or, without `wait`, accepted; 1 if abandoned or too late; 2 if refused.

    Raises UserError if there is no such job.
    """
    state = folder.state_folder(os.environ)
    run = meant_job(state, wanted)
    console = make_console(sys.stderr)

    def answer(outcome: str, why: str, migration: str = "", record: MigrationSummary | None = None) -> None:
        if as_json:
            spare, redone, stood_s = _what_came_of(record, rank)
            print_json(MigrateJson(run.run_id, migration, rank, outcome, why, spare, redone, stood_s))

    async with Control(run.controller_host, run.controller_port, folder.read_secret(state / run.folder)) as control:
        try:
            reply = await control.migrate(rank, reason)
        except ChannelClosedError as e:
            console.print(narrate.line(f"no answer: the job is over, or has lost its controller ({e})", "red"))
            answer(NO_ANSWER, str(e))
            return EXIT_ABANDONED
        if not reply.accepted:
            console.print(narrate.line(f"rank {rank} does not move: {reply.message}", "red"))
            console.print(narrate.hint(_advice(await control.status(), run.run_id)))
            answer(REFUSED, reply.message)
            return EXIT_USAGE
        if not wait:
            console.print(narrate.line(reply.message or f"{reply.migration} is under way"))
            answer(ACCEPTED, reply.message, reply.migration)
            return 0
        record = await follow(console, control, reply.migration)
    outcome, why = _report(console, record, rank)
    answer(outcome, why, reply.migration, record)
    return 0 if outcome == COMMITTED else EXIT_ABANDONED


def _advice(status: JobStatus, run_id: str) -> str:
    """Return the command that helps after a refusal."""
    lacks_spares = not status.spares_warm and not status.spares_making and not status.spares_reason
    return f"torchrelay spares add 1 --run {run_id}" if lacks_spares else f"torchrelay status --run {run_id}"


def _report(console: Console, record: MigrationSummary | None, rank: int) -> tuple[str, str]:
    """Say what became of this rank's move, if the migration's own end does not say it. Return outcome and reason."""
    if record is None:
        console.print(narrate.line(OVER, "red"))
        return ABANDONED, OVER
    if record.outcome == COMMITTED and rank not in record.ranks:
        console.print(narrate.line(f"rank {rank} did not move: {ANOTHER}", "red"))
        return ABANDONED, ANOTHER
    return record.outcome, record.outcome_reason


def _what_came_of(record: MigrationSummary | None, rank: int) -> tuple[str, int, float]:
    """Return three facts: the worker that has the rank now, the steps that were done again, and how long training stood still.

    The worker is empty if the rank has not moved.
    """
    if record is None:
        return "", 0, 0.0
    moved = dict(zip(record.ranks, record.spares)) if record.outcome == COMMITTED else {}
    return moved.get(rank, ""), record.steps_redone, record.total_s
