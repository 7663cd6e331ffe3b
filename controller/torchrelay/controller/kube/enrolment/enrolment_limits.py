"""Limits what the enrolment port costs, which answers before it knows who asks."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from torchrelay.protocol.errors import RefusedError, RetryableError
from torchrelay.protocol.security.pod_tls import PodIdentity

MAX_MESSAGE_BYTES = 32 << 10
MAX_TOKEN_BYTES = 16 << 10
"""Tokens of service accounts have 1 to 2 KiB; those of an API server with many claims a few more."""
MAX_REQUEST_BYTES = 4 << 10
"""The most bytes of a signing request, which has half a KiB."""
MAX_AT_ONCE = 64
"""The most requests under way; further ones are told to come again."""
BURST = 20.0
PER_S = 2.0
"""Requests of one source: so many at once, and so many a second after that. An agent asks once in half an hour."""
MAX_SOURCES = 4096
REVIEW_S = 10.0
"""How long the API server's word on a token is good. A pod that asks again has lost its connection."""
MAX_REVIEWS = 4096


@dataclass
class _Bucket:
    left: float
    at_s: float


class Sources:
    """Requests by source, an address. The sources that have been quiet the longest are forgotten first."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, source: str) -> None:
        """Count a request. Raises RetryableError where the source asks too often."""
        now_s = self._now()
        bucket = self._buckets.pop(source, None) or _Bucket(BURST, now_s)
        bucket.left = min(BURST, bucket.left + (now_s - bucket.at_s) * PER_S)
        bucket.at_s = now_s
        self._buckets[source] = bucket
        if len(self._buckets) > MAX_SOURCES:
            self._buckets.popitem(last=False)
        if bucket.left < 1.0:
            raise RetryableError(f"too many requests from {source}; {PER_S:g} a second are answered")
        bucket.left -= 1.0


class Reviews:
    """The results of token reviews, kept for a short while. Tokens themselves are not kept."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._known: OrderedDict[bytes, tuple[float, PodIdentity | RefusedError]] = OrderedDict()

    def known(self, token: str) -> PodIdentity | RefusedError | None:
        """Return what is known of the token; None where the API server has to be asked."""
        until_s, verdict = self._known.get(_key(token), (0.0, None))
        return verdict if self._now() < until_s else None

    def keep(self, token: str, verdict: PodIdentity | RefusedError) -> None:
        self._known[_key(token)] = self._now() + REVIEW_S, verdict
        self._known.move_to_end(_key(token))
        if len(self._known) > MAX_REVIEWS:
            self._known.popitem(last=False)


def check_size(token: str, signing_request: bytes) -> None:
    """Check the sizes of a request, before any other work is done for it. Raises RefusedError."""
    if len(token) > MAX_TOKEN_BYTES or len(signing_request) > MAX_REQUEST_BYTES:
        raise RefusedError(
            f"a token of {len(token)} bytes and a signing request of {len(signing_request)}; at most {MAX_TOKEN_BYTES} and "
            f"{MAX_REQUEST_BYTES} are taken"
        )


def source_of(peer: str) -> str:
    """Return the address in gRPC's name of a peer (`ipv4:10.0.0.1:4711`), without the port, which changes with each connection."""
    return peer.rpartition(":")[0] or peer


def _key(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
