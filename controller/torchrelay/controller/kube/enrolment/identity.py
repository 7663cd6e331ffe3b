"""Certificates for agents: a pod proves with its service account token who it is (TokenReview)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from torchrelay.controller.kube.client.api import TOKEN_REVIEWS, Api, Refused
from torchrelay.controller.kube.enrolment.enrolment_limits import Reviews, Sources, check_size, source_of
from torchrelay.protocol import relay_pb2, relay_pb2_grpc
from torchrelay.protocol.errors import RefusedError, RetryableError
from torchrelay.protocol.kube.kube_names import TOKEN_AUDIENCE
from torchrelay.protocol.messages import EnrolReply
from torchrelay.protocol.security.pod_tls import PodIdentity, sign
from torchrelay.protocol.security.tls import Credentials
from torchrelay.protocol.transport.convert import from_proto, to_proto

log = logging.getLogger(__name__)

_POD_NAME = "authentication.kubernetes.io/pod-name"
_POD_UID = "authentication.kubernetes.io/pod-uid"
_SERVICE_ACCOUNT = "system:serviceaccount:"


class Enrolment(relay_pb2_grpc.EnrolmentServicer):
    def __init__(self, api: Api, authority: Credentials, now: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._authority = authority
        self._sources = Sources(now)
        self._reviews = Reviews(now)
        self._under_way: dict[str, asyncio.Task[PodIdentity]] = {}
        """Reviews, by token. A second request with the token meanwhile waits for the same review."""

    async def Enrol(  # the service's name for it
        self, request: relay_pb2.EnrolRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> relay_pb2.EnrolReply:
        asked = from_proto(request)
        try:
            self._sources.take(source_of(context.peer()))
            check_size(asked.token, asked.signing_request)
            identity = await self._identity(asked.token)
            certificate = sign(self._authority, asked.signing_request, identity)
        except RetryableError as e:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(e))
        except (RefusedError, Refused) as e:
            log.warning("no certificate for %s: %s", context.peer(), e)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(e))
        reply: relay_pb2.EnrolReply = to_proto(EnrolReply(certificate, self._authority.authority))
        return reply

    async def _identity(self, token: str) -> PodIdentity:
        """Return the pod that the token was made for. Raises RefusedError, RetryableError, Refused."""
        known = self._reviews.known(token)
        if isinstance(known, RefusedError):
            raise known
        if known is not None:
            return known
        if (task := self._under_way.get(token)) is None:
            task = self._under_way[token] = asyncio.ensure_future(self._look_up(token))
            task.add_done_callback(lambda _: self._under_way.pop(token, None))
        return await asyncio.shield(task)  # one caller that goes away takes nothing from the others

    async def _look_up(self, token: str) -> PodIdentity:
        verdict: PodIdentity | RefusedError
        review = await self._review(token)
        try:
            verdict = read_review(review)
        except RefusedError as e:
            verdict = e
        self._reviews.keep(token, verdict)
        if isinstance(verdict, RefusedError):
            raise verdict
        return verdict

    async def _review(self, token: str) -> dict[str, Any]:
        spec = {"token": token, "audiences": [TOKEN_AUDIENCE]}
        return await self._api.create(TOKEN_REVIEWS, {"metadata": {}, "spec": spec})


def read_review(review: dict[str, Any]) -> PodIdentity:
    """Return which pod the token was made for. Raises RefusedError for a token that is not valid, not for us, or of no pod."""
    status = review.get("status") or {}
    if not status.get("authenticated"):
        raise RefusedError(f"the token is not valid: {status.get('error') or 'the API server does not say why'}")
    if TOKEN_AUDIENCE not in (status.get("audiences") or ()):
        raise RefusedError(f"the token is not made for {TOKEN_AUDIENCE}")
    user = status.get("user") or {}
    name = user.get("username") or ""
    if not name.startswith(_SERVICE_ACCOUNT):
        raise RefusedError(f"{name} is no service account")
    extra = user.get("extra") or {}
    pods = list(extra.get(_POD_NAME) or ())
    uids = list(extra.get(_POD_UID) or ())
    if len(pods) != 1 or len(uids) != 1:
        raise RefusedError("the token is bound to no pod")
    namespace, _, _ = name.removeprefix(_SERVICE_ACCOUNT).partition(":")
    return PodIdentity(namespace, str(pods[0]), str(uids[0]))
