"""The notices of one run, from its events to its end."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from torchrelay.cli.command_line.options import RunOptions
from torchrelay.cli.display import narrate
from torchrelay.cli.display.summary import RunSummary
from torchrelay.cli.display.teller import Teller
from torchrelay.protocol.events import Occurrence
from torchrelay.protocol.notify.notices import JobCommands, JobNotice, ending, notice


class RunNotices:
    """Posts events that are worth a notice, if notices are asked for."""

    def __init__(self, post: Callable[[JobNotice], None], run_id: str) -> None:
        self._post = post
        self._commands = JobCommands(f"torchrelay status --run {run_id}", f"torchrelay explain {{}} --run {run_id}")

    def event(self, before: RunSummary, now: RunSummary, event: Occurrence) -> None:
        if (found := notice(before, event, self._commands)) is not None:
            self._post(found)

    def end(self, summary: RunSummary, exit_code: int, resume: str) -> None:
        self._post(ending(summary.boundary, exit_code, summary.reason, resume if summary.checkpoint else ""))


@asynccontextmanager
async def notices_of(options: RunOptions, run_id: str, teller: Teller) -> AsyncIterator[RunNotices]:
    """Post notices while the run lasts; at its end, those that still wait."""
    if options.notify is None or options.check_steps:  # of a check nobody is told
        yield RunNotices(lambda notice: None, run_id)
        return
    # an HTTP client is loaded where one is needed
    from torchrelay.protocol.notify.webhook import NotifiedJob, NotifyWebhook

    job = NotifiedJob(run_id, options.name, socket.gethostname())
    webhook = NotifyWebhook(options.notify, lambda text: teller.say([narrate.line(f"--notify: {text}", "yellow")]))
    try:
        yield RunNotices(lambda notice: webhook.post(notice, job), run_id)
    finally:
        await webhook.close()
