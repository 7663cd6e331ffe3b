"""What every request to a dashboard has to pass, and what every answer carries.

- The name in `Host` is one of ours: a foreign page whose name was made to point here (DNS rebinding) is refused.
- What changes something comes from our own page, with a token; what another site's page asks for is refused.
- The page may load nothing but its own files, and nobody may put it into a frame.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from torchrelay.dashboard.tokens import Tokens

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
READING = ("GET", "HEAD")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}


def host_name(host: str) -> str:
    """Return the name in a `Host` header, without the port, in lower case."""
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower()


def holder(headers: Headers, tokens: Mapping[str, str]) -> str | None:
    """Return the name of whose token a request has; None if it has none of them."""
    given = headers.get("authorization", "").removeprefix("Bearer ").encode()
    found = [name for name, token in tokens.items() if hmac.compare_digest(given, token.encode())]
    return found[0] if found else None


def refusal(
    method: str, scheme: str, headers: Headers, names: Collection[str], tokens: Mapping[str, str]
) -> tuple[int, str]:
    """Return status and reason if a request is refused; (0, "") if it may go on."""
    host = headers.get("host", "")
    if host_name(host) not in names:
        return 421, "this name is not one of the dashboard's; start it with --allow-host if it should be"
    origin = headers.get("origin")
    site = headers.get("sec-fetch-site", "")
    if method in READING:
        foreign = (origin is not None and origin != f"{scheme}://{host}") or (
            site in ("cross-site", "same-site") and headers.get("sec-fetch-mode") != "navigate"
        )
        return (403, "another site's page may not read this") if foreign else (0, "")
    if origin != f"{scheme}://{host}" or site not in ("", "same-origin"):
        return 403, "only the dashboard's own page may ask for this"
    if not tokens:
        return 403, "this dashboard is read-only: it was started without a token"
    if holder(headers, tokens) is None:
        return 401, "the token is not the right one"
    return 0, ""


class GuardedApp:
    """Wraps an application. `names`: what `Host` may be, without the port."""

    def __init__(self, app: ASGIApp, names: Collection[str], tokens: Tokens) -> None:
        self._app = app
        self._tokens = tokens
        self._names = frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        headers = Headers(scope=scope)
        is_read = scope["method"] in READING
        tokens = {} if is_read else self._tokens()
        status, reason = refusal(scope["method"], scope["scheme"], headers, self._names, tokens)
        if status:
            await PlainTextResponse(reason, status)(scope, receive, send_guarded)
            return
        scope.setdefault("state", {})["by"] = "" if is_read else holder(headers, tokens)
        await self._app(scope, receive, send_guarded)
