"""The webhook over HTTP: `/mutate` for the API server, `/healthz` and `/readyz` for the kubelet."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from torchrelay.protocol.errors import FrameError
from torchrelay.webhook.injection.inject import PodDecision
from torchrelay.webhook.serving.review import answer

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 8 << 20
"""The API server takes requests of 3 MiB at most; a review holds the object once, or twice at an update."""


def make_app(decide: Callable[[dict[str, Any]], PodDecision], is_ready: Callable[[], str]) -> Starlette:
    """`is_ready`: why the webhook cannot be called yet; "" once it can."""

    async def mutate(request: Request) -> Response:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY_BYTES:
                return PlainTextResponse("larger than any review", status_code=413)
        try:
            review = json.loads(body)
            return JSONResponse(answer(review, decide))
        except (ValueError, FrameError, RecursionError) as e:
            log.warning("refused: %s", e)
            return PlainTextResponse(str(e), status_code=400)

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok")

    async def readyz(_: Request) -> Response:
        reason = is_ready()
        return PlainTextResponse(reason or "ok", status_code=503 if reason else 200)

    return Starlette(
        routes=[
            Route("/mutate", mutate, methods=["POST"]),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
        ]
    )
