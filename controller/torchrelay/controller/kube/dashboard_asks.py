"""Does what people ask for on the dashboard beside this controller, in the name of whose token they have entered."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from torchrelay.controller.kube.client.api import QUARANTINES, Api, Refused
from torchrelay.controller.kube.cluster.pods import JobKey
from torchrelay.controller.kube.jobs.ledger import Ledger
from torchrelay.controller.kube.jobs.run import JobRun
from torchrelay.protocol.errors import FrameError, RetryableError
from torchrelay.protocol.kube.dashboard_asks import LONGEST_ASK_BYTES, Ask, AskToClear, AskToMove, parse_ask
from torchrelay.protocol.kube.job_feed import AskAnswered
from torchrelay.protocol.messages import ClearRequest

log = logging.getLogger(__name__)

READ_ONLY = "this controller takes nothing from its dashboard: it was started without tokens (dashboard.tokens.secret)"

Answerer = Callable[[Ask], Awaitable[AskAnswered]]


class DashboardAsks:
    """Answers the asks of a dashboard. `ledger`: the jobs."""

    def __init__(self, api: Api, ledger: Ledger) -> None:
        self._api = api
        self._ledger = ledger

    async def answer(self, ask: Ask) -> AskAnswered:
        """Do it, or say why not. Each ask is logged with the name of who asks."""
        key = JobKey(ask.namespace, ask.job)
        what = f"move rank {ask.rank}" if isinstance(ask, AskToMove) else f"clear {ask.subject}"
        log.info("%s: %s asks on the dashboard to %s: %s", key, ask.by, what, ask.reason, extra={"run": str(key)})
        if (run := self._ledger.runs.get(key)) is None:
            return AskAnswered(ask.number, False, f"there is no job {key} that runs")
        try:
            done, message = _move(run, ask) if isinstance(ask, AskToMove) else await self._clear(run, ask)
        except (RetryableError, Refused) as e:
            return AskAnswered(ask.number, False, str(e))
        except Exception as e:  # noqa: BLE001 - whatever it is, the next job must not notice
            run.failed(e)
            return AskAnswered(ask.number, False, f"torchrelay has failed at it: {type(e).__name__}: {e}")
        return AskAnswered(ask.number, done, message)

    async def _clear(self, run: JobRun, ask: AskToClear) -> tuple[bool, str]:
        """End the Quarantines of a subject, which hold for all jobs, or else what this job alone has put aside."""
        held = [n for n, q in self._ledger.quarantines().items() if ask.subject in (q.device or q.node, n)]
        if not held:
            reply = run.relay.clear(ClearRequest(_known_as(run, ask.subject), ask.reason, by=_who(ask)))
            return reply.cleared, reply.message
        for name in held:
            await self._api.patch(QUARANTINES, name, {"spec": {"cleared": f"{ask.reason} (asked for by {_who(ask)})"}})
        return True, f"{ask.subject} may be used again"


def _move(run: JobRun, ask: AskToMove) -> tuple[bool, str]:
    reply = run.migrate(ask.rank, ask.reason, _who(ask))
    return reply.accepted, reply.message or f"migration {reply.migration} is under way"


def _known_as(run: JobRun, subject: str) -> str:
    """Return what the job calls the subject: of a node the agent of its pod there."""
    job = run.core.job
    return next((agent for agent, node in job.machines.items() if node == subject and agent in job.quarantine), subject)


def _who(ask: Ask) -> str:
    return f"{ask.by}, on the dashboard"


async def hear(reader: asyncio.StreamReader, answerer: Answerer, say: Callable[[AskAnswered], None]) -> None:
    """Answer what a dashboard asks for, one after the other, until it has gone."""
    with contextlib.suppress(OSError):
        while line := await _line(reader):
            try:
                ask = parse_ask(line)
            except (
                FrameError
            ) as e:  # of a dashboard of another version: they are replaced together, one after the other
                log.warning("%s", e)
                continue
            say(await answerer(ask))


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Return the next line; empty where there is none any more, or one that is too long."""
    try:
        return await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError:
        return b""
    except asyncio.LimitOverrunError:
        log.warning("the dashboard has sent a line of more than %d bytes", LONGEST_ASK_BYTES)
        return b""
