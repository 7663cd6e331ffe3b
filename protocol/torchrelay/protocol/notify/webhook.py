"""Posts notices to a URL: in their order, with retries, beside the jobs and never in their way."""

from __future__ import annotations

import asyncio
import json
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from torchrelay.protocol.notify.notices import JobNotice
from torchrelay.protocol.notify.target import BodyForm, NotifyTarget

QUEUED = 100
TIMEOUT_S = 10.0
WAITS_S = (1.0, 2.0, 4.0, 8.0)
"""Between the tries of one notice."""
AT_THE_END_S = 20.0
AGAIN_CODES = (408, 425, 429)


@dataclass(frozen=True)
class NotifiedJob:
    """What a notice says of its job. In a cluster `run_id` is NAMESPACE/NAME, and `host` the cluster."""

    run_id: str
    name: str
    host: str


def body(notice: JobNotice, job: NotifiedJob, target: NotifyTarget) -> bytes:
    """Return the bytes to post."""
    values = {
        "kind": notice.kind.value,
        "text": notice.text,
        "hint": notice.hint,
        "job": job.run_id,
        "name": job.name,
        "host": job.host,
    }
    if target.template:
        return string.Template(target.template).safe_substitute(_escaped(values)).encode()
    if target.form is BodyForm.SLACK:
        is_command = notice.hint.startswith(("torchrelay ", "kubectl "))
        hint = f"\n`{notice.hint}`" if is_command else f"\n{notice.hint}" if notice.hint else ""
        told = f"*{job.name}* ({job.run_id} on {job.host}): {notice.text}{hint}"
        return json.dumps({"text": _for_slack(told)}).encode()
    return json.dumps(values).encode()


def _for_slack(text: str) -> str:
    """Return the text with the three letters that are not text to Slack: a reason with `<!channel>` would call everybody."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _escaped(values: Mapping[str, str]) -> dict[str, str]:
    return {name: json.dumps(value)[1:-1] for name, value in values.items()}


class NotifyWebhook:
    """Posts notices. `say` is told once that notices do not arrive, and again only after one has arrived.

    `transport`: of the HTTP client, the network by default.
    """

    def __init__(
        self,
        target: NotifyTarget,
        say: Callable[[str], None],
        transport: httpx2.AsyncBaseTransport | None = None,
        waits_s: tuple[float, ...] = WAITS_S,
    ) -> None:
        self._target = target
        self._say = say
        self._waits_s = waits_s
        self._client = httpx2.AsyncClient(timeout=TIMEOUT_S, transport=transport)
        self._queue: asyncio.Queue[tuple[JobNotice, NotifiedJob] | None] = asyncio.Queue()
        self._has_complained = False
        self._task = asyncio.ensure_future(self._run())

    def post(self, notice: JobNotice, job: NotifiedJob) -> None:
        """Queue a notice, and return at once. If very many wait, drop the new one and say so."""
        if notice.kind not in self._target.kinds:
            return
        if self._queue.qsize() >= QUEUED:
            self._complain("too many notices wait")
            return
        self._queue.put_nowait((notice, job))

    async def close(self) -> None:
        """Wait until all notices have arrived or were given up, but not for very long."""
        self._queue.put_nowait(None)
        await asyncio.wait([self._task], timeout=AT_THE_END_S)
        self._task.cancel()
        await self._client.aclose()

    async def _run(self) -> None:
        while (waiting := await self._queue.get()) is not None:
            problem = ""
            for wait_s in (*self._waits_s, None):
                problem, again = await self._try(*waiting)
                if not again or wait_s is None:
                    break
                await asyncio.sleep(wait_s)
            if problem:
                self._complain(problem)
            else:
                self._has_complained = False  # the next time that they do not arrive is another one

    async def _try(self, notice: JobNotice, job: NotifiedJob) -> tuple[str, bool]:
        """Post the notice once. Return why it did not arrive, empty if it did, and whether another try may help."""
        headers: dict[str, Any] = {"Content-Type": "application/json"}
        try:
            content = body(notice, job, self._target)
            reply = await self._client.post(self._target.url, content=content, headers=headers)
        except httpx2.HTTPError as e:
            return f"{type(e).__name__}: {e}", True
        except httpx2.InvalidURL:  # its text names the URL, which may be a secret
            return "the URL is none", False
        except Exception as e:  # noqa: BLE001 - the next notice must not notice; its text may name the URL
            return type(e).__name__, False
        if reply.is_success:
            return "", False
        again = reply.status_code >= 500 or reply.status_code in AGAIN_CODES
        return f"HTTP status {reply.status_code}: {reply.text[:200]}", again

    def _complain(self, problem: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            self._say(f"notices do not arrive ({problem}); jobs go on")
