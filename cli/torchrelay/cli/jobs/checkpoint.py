"""`torchrelay checkpoint`: all ranks of a running job save what they hold, and go on."""

from __future__ import annotations

import dataclasses
import json
import os
import sys

from rich.console import Console

from torchrelay.cli.controller_client.reach import controller_of
from torchrelay.cli.display import narrate
from torchrelay.cli.display.summary import MigrationSummary
from torchrelay.cli.display.teller import make_console
from torchrelay.cli.display.told_json import CheckpointJson
from torchrelay.cli.folders import folder
from torchrelay.cli.jobs.following import follow
from torchrelay.protocol import events
from torchrelay.protocol.names import EXIT_USAGE
from torchrelay.protocol.words.phases import ABANDONED, SAVED

EXIT_NOT_SAVED = 1
ACCEPTED, REFUSED = "accepted", "refused"
"""Outcomes of a checkpoint that is not waited for, and of one that never began."""


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
    if not reply.accepted:
        return _refused(console, reply.message, run.run_id, reply.again, as_json)
    if not wait:
        console.print(narrate.line(f"{reply.migration}: {reply.message}"))
        _tell(as_json, _made(reply.migration, ACCEPTED, reply.message, None, None))
        return 0
    if record is None:
        console.print(narrate.line("the job ended before the checkpoint was saved", "red"))
        _tell(as_json, _made(reply.migration, ABANDONED, "the job ended before", None, None))
        return EXIT_NOT_SAVED
    made = saved[-1] if record.outcome == SAVED and saved else None
    if made is not None and made.resume_command:
        console.print(narrate.hint(made.resume_command))
    _tell(as_json, _made(reply.migration, record.outcome, record.outcome_reason, record, made))
    return 0 if record.outcome == SAVED else EXIT_NOT_SAVED


def _refused(console: Console, message: str, run_id: str, again: bool, as_json: bool) -> int:
    console.print(narrate.line(f"no checkpoint is saved: {message}", "red"))
    command = f"torchrelay checkpoint {run_id}" if again else f"torchrelay status --run {run_id}"
    console.print(narrate.hint(command))
    _tell(as_json, _made("", REFUSED, message, None, None))
    return EXIT_USAGE


def _made(
    migration: str, outcome: str, reason: str, record: MigrationSummary | None, made: events.CheckpointSaved | None
) -> CheckpointJson:
    stood_s = record.total_s if record is not None else 0.0
    if made is None:
        return CheckpointJson(migration, outcome, reason, "", -1, "", stood_s)
    return CheckpointJson(migration, outcome, reason, made.directory, made.boundary, made.resume_command, stood_s)


def _tell(as_json: bool, told: CheckpointJson) -> None:
    if as_json:
        print(json.dumps(dataclasses.asdict(told)))
