"""`torchrelay checkpoint`: all ranks of a running job save what they hold, and go on."""

from __future__ import annotations

import os
import sys

from rich.console import Console

from torchrelay.cli.controller_client.reach import controller_of
from torchrelay.cli.display import narrate
from torchrelay.cli.display.answers import ACCEPTED, REFUSED, CheckpointJson, print_json
from torchrelay.cli.display.summary import MigrationSummary
from torchrelay.cli.display.teller import make_console
from torchrelay.cli.folders import folder
from torchrelay.cli.jobs.following import follow
from torchrelay.protocol import events
from torchrelay.protocol.names import EXIT_USAGE
from torchrelay.protocol.words.phases import ABANDONED, SAVED

EXIT_NOT_SAVED = 1


async def checkpoint(reason: str, wanted: str | None, wait: bool, as_json: bool) -> int:
    """Return 0 once it is saved or, without `wait`, accepted; 1 if nothing was saved; 2 if it is refused.

    Raises UserError if there is no such job, FatalError if its controller does not answer.
    """
    console = make_console(sys.stderr)
    saved: list[events.CheckpointSaved] = []
    record = None
    async with controller_of(folder.state_folder(os.environ), wanted) as (run, control):
        reply = await control.save(reason)
        if reply.accepted and wait:

            def heard(event: events.Occurrence) -> None:
                if isinstance(event, events.CheckpointSaved):
                    saved.append(event)

            record = await follow(console, control, reply.migration, heard)

    def answer(outcome: str, why: str, made: events.CheckpointSaved | None = None) -> None:
        if as_json:
            print_json(_answer(run.run_id, reply.migration, outcome, why, record, made))

    if not reply.accepted:
        _say_refused(console, reply.message, run.run_id, reply.again)
        answer(REFUSED, reply.message)
        return EXIT_USAGE
    if not wait:
        console.print(narrate.line(f"{reply.migration}: {reply.message}"))
        answer(ACCEPTED, reply.message)
        return 0
    if record is None:
        console.print(narrate.line("the job ended before the checkpoint was saved", "red"))
        answer(ABANDONED, "the job ended before")
        return EXIT_NOT_SAVED
    made = saved[-1] if record.outcome == SAVED and saved else None
    if made is not None and made.resume_command:
        console.print(narrate.hint(made.resume_command))
    answer(record.outcome, record.outcome_reason, made)
    return 0 if record.outcome == SAVED else EXIT_NOT_SAVED


def _say_refused(console: Console, message: str, run_id: str, again: bool) -> None:
    console.print(narrate.line(f"no checkpoint is saved: {message}", "red"))
    command = f"torchrelay checkpoint {run_id}" if again else f"torchrelay status --run {run_id}"
    console.print(narrate.hint(command))


def _answer(
    run_id: str,
    migration: str,
    outcome: str,
    reason: str,
    record: MigrationSummary | None,
    made: events.CheckpointSaved | None,
) -> CheckpointJson:
    stood_s = record.total_s if record is not None else 0.0
    directory, boundary, resume = ("", -1, "") if made is None else (made.directory, made.boundary, made.resume_command)
    return CheckpointJson(run_id, migration, outcome, reason, directory, boundary, resume, stood_s)
