"""The notices of one run, from its events to its end."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from torchrelay.cli.command_line.options import RunOptions
from torchrelay.cli.display import narrate
from torchrelay.cli.display.summary import RunSummary
from torchrelay.cli.display.teller import Teller
from torchrelay.cli.notify.notices import ending, notice
from torchrelay.protocol.events import Occurrence

if TYPE_CHECKING:  # an HTTP client is loaded where one is needed
    from torchrelay.cli.notify.webhook import NotifyWebhook


class RunNotices:
    """Posts what is worth it, if anything is asked for."""

    def __init__(self, webhook: NotifyWebhook | None) -> None:
        self._webhook = webhook

    def event(self, before: RunSummary, now: RunSummary, event: Occurrence) -> None:
        if self._webhook is not None and (found := notice(before, now, event)) is not None:
            self._webhook.post(found)

    def end(self, summary: RunSummary, exit_code: int, resume: str) -> None:
        if self._webhook is not None:
            self._webhook.post(ending(summary, exit_code, resume if summary.checkpoint else ""))


@asynccontextmanager
async def notices_of(options: RunOptions, run_id: str, teller: Teller) -> AsyncIterator[RunNotices]:
    """Posts for as long as the run lasts; at its end, what still waits."""
    if options.notify is None:
        yield RunNotices(None)
        return
    from torchrelay.cli.notify.webhook import NotifiedJob, NotifyWebhook

    job = NotifiedJob(run_id, options.name, socket.gethostname())
    webhook = NotifyWebhook(options.notify, job, lambda text: teller.say([narrate.line(text, "yellow")]))
    try:
        yield RunNotices(webhook)
    finally:
        await webhook.close()
