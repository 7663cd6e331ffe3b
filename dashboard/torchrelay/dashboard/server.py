"""The dashboard over HTTP: its page, a stream of what changes, and, with a token, what can be asked for.

Paths have a run's and a migration's name in them and nothing secret; the token travels in a header alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Collection
from importlib import resources
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from torchrelay.dashboard import view
from torchrelay.dashboard.guard import GuardedApp
from torchrelay.dashboard.hub import EVERY_S, Answer, Hub
from torchrelay.dashboard.tokens import Tokens, one_token

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
MAX_BODY_BYTES = 64 << 10
MAX_STREAMS = 200
STILL_THERE_S = 15.0
"""A stream that has nothing to say says so: whoever is between must not take it for dead."""
AGAIN_MS = 2000
"""After so long a page whose stream has broken asks for another one."""
END_S = 2.0
LONGEST_REASON = 500
NO_TOKENS = one_token("")


def page_files() -> dict[str, tuple[bytes, str]]:
    """Return content and type of each file of the page, by its path below `/`."""
    folder = resources.files("torchrelay.dashboard") / "page"
    found = {}
    for file in folder.iterdir():
        kind = next((t for suffix, t in TYPES.items() if file.name.endswith(suffix)), None)
        if kind is not None:
            found[file.name] = (file.read_bytes(), f"{kind}; charset=utf-8")
    return found


def make_app(hub: Hub, names: Collection[str], tokens: Tokens = NO_TOKENS) -> Starlette:
    """Make the application.

    `names`: hosts under which it is reached; `tokens`: of those who may ask for something, looked up for each request.
    """
    site = _Site(hub, tokens)
    app = Starlette(
        routes=[
            Route("/", site.page),
            Route("/api/settings", site.settings),
            Route("/api/runs", site.runs),
            Route("/api/runs/stream", site.stream_runs),
            Route("/api/runs/{run}/stream", site.stream_run),
            Route("/api/runs/{run}/migrations/{key}", site.migration),
            Route("/api/runs/{run}/migrate", site.migrate, methods=["POST"]),
            Route("/api/runs/{run}/clear", site.clear, methods=["POST"]),
            Route("/{name}", site.page),
        ],
        middleware=[Middleware(GuardedApp, names=names, tokens=tokens)],
    )
    app.state.closing = site.closing
    return app


class DashboardServer(uvicorn.Server):
    """A server that closes its streams before it ends, since they would never end by themselves."""

    def __init__(self, config: uvicorn.Config, closing: asyncio.Event) -> None:
        super().__init__(config)
        self._closing = closing

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._closing.set()
        await super().shutdown(sockets)


def make_server(app: Starlette) -> DashboardServer:
    """Make a server that logs no request, for sockets that listen already."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        log_config=None,  # as lines of whoever serves it
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=int(END_S),
    )
    return DashboardServer(config, app.state.closing)


class _Site:
    def __init__(self, hub: Hub, tokens: Tokens) -> None:
        self._hub = hub
        self._tokens = tokens
        self._files = page_files()
        self._streams = 0
        self.closing = asyncio.Event()

    async def page(self, request: Request) -> Response:
        found = self._files.get(request.path_params.get("name", "index.html"))
        if found is None:
            return PlainTextResponse("there is no such page", 404)
        return Response(found[0], media_type=found[1])

    async def settings(self, _: Request) -> Response:
        return JSONResponse({"actions": bool(self._tokens()), "noun": self._hub.noun})

    async def runs(self, _: Request) -> Response:
        """Answer with the list as it is now, for programs."""
        return JSONResponse(json.loads(self._hub.listed()["runs"]))

    async def stream_runs(self, _: Request) -> Response:
        return self._stream(self._hub.listed)

    async def stream_run(self, request: Request) -> Response:
        run = request.path_params["run"]
        if self._hub.find(run) is None:
            return PlainTextResponse("this dashboard knows no such run", 404)
        return self._stream(lambda: self._hub.sections(run))

    async def migration(self, request: Request) -> Response:
        source = self._hub.find(request.path_params["run"])
        told = view.migration(source.seen(), request.path_params["key"]) if source is not None else None
        if told is None:
            return PlainTextResponse("no such migration is known", 404)
        return JSONResponse(told)

    async def migrate(self, request: Request) -> Response:
        source = self._hub.find(request.path_params["run"])
        asked = await _body(request)
        rank = asked.get("rank")
        reason = _reason(asked)
        if source is None or type(rank) is not int or rank < 0 or not reason:
            return PlainTextResponse("a rank and a reason are needed", 400)
        return _answered(await source.migrate(rank, reason, request.state.by))

    async def clear(self, request: Request) -> Response:
        source = self._hub.find(request.path_params["run"])
        asked = await _body(request)
        subject = asked.get("subject")
        reason = _reason(asked)
        if source is None or type(subject) is not str or not subject or not reason:
            return PlainTextResponse("a device or node and a reason are needed", 400)
        return _answered(await source.clear(subject, reason, asked.get("check") is True, request.state.by))

    def _stream(self, look: Any) -> Response:
        if self._streams >= MAX_STREAMS:
            return PlainTextResponse("too many pages look at this dashboard", 503)
        return StreamingResponse(self._changes(look), media_type="text/event-stream")

    async def _changes(self, look: Any) -> AsyncIterator[str]:
        """Yield each section that has changed since it was sent last."""
        sent: dict[str, str] = {}
        quiet_s = 0.0
        told_when_to_come_again = (
            False  # with the first section: there are clients that take it for one if it stands alone
        )
        self._streams += 1
        try:
            while not self.closing.is_set():
                try:
                    now = look()
                except KeyError:  # the oldest runs go, where there are many
                    return
                new = [(name, text) for name, text in now.items() if sent.get(name) != text]
                for name, text in new:
                    again = "" if told_when_to_come_again else f"retry: {AGAIN_MS}\n"
                    told_when_to_come_again = True
                    yield f"{again}event: {name}\ndata: {text}\n\n"
                sent = dict(now)
                quiet_s = 0.0 if new else quiet_s + EVERY_S
                if quiet_s >= STILL_THERE_S:
                    yield ": still there\n\n"
                    quiet_s = 0.0
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.closing.wait(), EVERY_S)
        finally:
            self._streams -= 1


async def _body(request: Request) -> dict[str, Any]:
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY_BYTES:
            return {}
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _reason(asked: dict[str, Any]) -> str:
    reason = asked.get("reason")
    return reason.strip()[:LONGEST_REASON] if isinstance(reason, str) else ""


def _answered(answer: Answer) -> Response:
    return JSONResponse({"done": answer.done, "message": answer.message})
