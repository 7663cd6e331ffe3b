"""The agent's certificate: asked for with the pod's service account token, and renewed before it expires."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import random
from pathlib import Path

import grpc.aio

from torchrelay.protocol import relay_pb2_grpc
from torchrelay.protocol.errors import RefusedError, RetryableError
from torchrelay.protocol.messages import EnrolRequest
from torchrelay.protocol.security.pod_tls import PodLeaf, SigningRequest, anonymous_channel
from torchrelay.protocol.transport.convert import from_proto, to_proto

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.2
MAX_BACKOFF_S = 10.0
CALL_S = 10.0


class PodCredentials:
    """`target`: where enrolment is served; `authority`: PEM. The token is read anew each time: the kubelet renews it.

    `learnt`: a file of this pod's own, with the authorities that the controller has named since: the pod's environment has those of
    the day that it was made, and an agent that is started again may come long after these.
    """

    def __init__(self, target: str, authority: bytes, token_file: Path, learnt: Path) -> None:
        self._target = target
        self._token_file = token_file
        self._learnt = learnt
        self._authority = _content(learnt) or authority
        self.leaf: PodLeaf | None = None
        self._said = ""
        self.ready = asyncio.Event()

    def channel(self, target: str) -> grpc.aio.Channel:
        """With the newest certificate. Raises RetryableError before there is one."""
        if self.leaf is None:
            raise RetryableError("there is no certificate yet")
        return self.leaf.channel(target, self._authority)

    async def run(self) -> None:
        """Until cancelled. A refusal is told once and tried again: the API server may be away."""
        backoff_s = FIRST_BACKOFF_S
        while True:
            try:
                self.leaf = await self._enrol()
            except (grpc.aio.AioRpcError, OSError, RefusedError) as e:
                self._tell(e.details() or e.code().name if isinstance(e, grpc.aio.AioRpcError) else str(e))
                await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
                backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)
                continue
            self.ready.set()
            self._said = ""
            backoff_s = FIRST_BACKOFF_S
            await asyncio.sleep(renew_in_s(self.leaf, dt.datetime.now(dt.timezone.utc)))

    async def _enrol(self) -> PodLeaf:
        signing_request = SigningRequest()
        request = EnrolRequest(self._token_file.read_text().strip(), signing_request.pem())
        async with anonymous_channel(self._target, self._authority) as channel:
            stub = relay_pb2_grpc.EnrolmentStub(channel)
            reply = from_proto(await stub.Enrol(to_proto(request), timeout=CALL_S))
        leaf = signing_request.leaf(reply.certificate)
        self._trust(reply.authorities)
        return leaf

    def _trust(self, authorities: bytes) -> None:
        """On the word of a controller that one of those has vouched for that were trusted before."""
        if not authorities or authorities == self._authority:
            return
        self._authority = authorities
        partial = self._learnt.with_name(f".{self._learnt.name}.partial")
        try:
            partial.write_bytes(authorities)
            partial.rename(self._learnt)
        except OSError as e:
            log.warning("an agent that is started again in this pod may not know the controller: %s", e)

    def _tell(self, reason: str) -> None:
        if reason != self._said:
            self._said = reason
            log.warning("no certificate yet from %s: %s; tried again", self._target, reason)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # nothing was learnt yet


def renew_in_s(leaf: PodLeaf, now: dt.datetime) -> float:
    """After half of what is left, so that many failures fit in before the end."""
    return max(1.0, (leaf.expires - now).total_seconds() / 2)
