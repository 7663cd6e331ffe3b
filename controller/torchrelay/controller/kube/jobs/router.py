"""Many jobs behind one port: an agent speaks for the pod that its certificate names, and for no other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import grpc
import grpc.aio

from torchrelay.controller.kube.jobs.run import JobRun
from torchrelay.protocol import relay_pb2, relay_pb2_grpc
from torchrelay.protocol.errors import FrameError, RefusedError, RetryableError
from torchrelay.protocol.messages import AgentHello, LaunchReply
from torchrelay.protocol.security.pod_tls import PodIdentity, identity_of
from torchrelay.protocol.transport.convert import to_proto
from torchrelay.protocol.transport.incoming import received

log = logging.getLogger(__name__)

HELLO_S = 30.0
"""Time for the first message of a stream."""
MOST_STREAMS_OF_A_POD = 4
"""One stream is of use; those before it may not be known to be gone yet."""
MOST_KNOWN = 10_000
"""Pods that were refused, and reasons for which agents wait."""


class Router(relay_pb2_grpc.RelayServicer):
    """Serves agents.

    `run_for(identity, hello)` finds the job of a pod; it raises RefusedError, or RetryableError where it cannot tell yet.
    `may_launch(identity)` answers a launcher in a pod, and raises the same.
    What commands ask of one job (Watch, Status, ...) is not served here.
    """

    def __init__(
        self,
        run_for: Callable[[PodIdentity, AgentHello], Awaitable[JobRun]],
        may_launch: Callable[[PodIdentity], Awaitable[LaunchReply]],
    ) -> None:
        self._run_for = run_for
        self._may_launch = may_launch
        self._open: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()

    async def Attach(  # the service's name for it
        self, request_iterator: AsyncIterator[relay_pb2.FromAgent], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[relay_pb2.ToAgent]:
        with self._one_more(context) as is_admitted:
            if not is_admitted:
                await context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MOST_STREAMS_OF_A_POD} streams of this pod are open"
                )
            async for order in self._attached(request_iterator, context):
                yield order

    def _tell_refused(self, key: str, peer: str, reason: Exception) -> None:
        """Log a refusal, now and then. An agent on a node that is cut off goes on asking."""
        if count := _now_and_then(self._refused, key):
            log.warning("refused a stream of %s (so far %d of this pod): %s", peer, count, reason)

    def _tell_waits(self, pod: PodIdentity, reason: Exception) -> None:
        """Log why an agent waits, now and then: many agents of a job may wait for the same, and each goes on asking."""
        if count := _now_and_then(self._waiting, f"{pod.namespace}: {reason}"):
            log.info("the agent of %s/%s waits (so far %d times like this): %s", pod.namespace, pod.pod, count, reason)

    @contextlib.contextmanager
    def _one_more(self, context: grpc.aio.ServicerContext[Any, Any]) -> Iterator[bool]:
        """Hold a place for one more stream of the peer. Yield whether it may open one.

        The number is limited, since each stream may have a message of the largest size on its way.
        """
        peer = _key(context)
        self._open[peer] += 1
        try:
            yield self._open[peer] <= MOST_STREAMS_OF_A_POD
        finally:
            self._open[peer] -= 1
            if not self._open[peer]:
                del self._open[peer]

    async def _attached(
        self, request_iterator: AsyncIterator[relay_pb2.FromAgent], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[relay_pb2.ToAgent]:
        try:
            first = await asyncio.wait_for(anext(request_iterator, None), HELLO_S)
            identity = _peer(context)
            run = await self._run_for(identity, check_hello(identity, first))
        except RetryableError as e:
            self._tell_waits(identity, e)
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(e))
        except asyncio.TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no AgentHello within {HELLO_S:.0f} s")
        except (RefusedError, FrameError) as e:
            self._tell_refused(_key(context), context.peer(), e)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(e))
        assert first is not None
        async for order in run.service.Attach(_only_once(first, request_iterator), context):
            yield order

    async def Launch(  # the service's name for it
        self, request: relay_pb2.LaunchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> relay_pb2.LaunchReply:
        try:
            answer = await self._may_launch(_peer(context))
        except RetryableError as e:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(e))
        except RefusedError as e:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(e))
        reply: relay_pb2.LaunchReply = to_proto(answer)
        return reply

    async def _served_by_resources(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        """Refuse what commands ask of one job. If it was left to gRPC, it would log a traceback for each."""
        await context.abort(
            grpc.StatusCode.UNIMPLEMENTED,
            "in a cluster, look at the job's TrainingJob, and create a Migration to move a rank",
        )

    Watch = Status = Migrate = Checkpoint = Stop = Clear = Quarantine = AddSpares = Lead = _served_by_resources


def _now_and_then(told: Counter[str], key: str) -> int:
    """Count once more. Return how often it was, at the first, second, fourth, ... time; 0 in between."""
    if len(told) >= MOST_KNOWN:
        told.clear()
    told[key] += 1
    return told[key] if told[key] & (told[key] - 1) == 0 else 0


def check_hello(identity: PodIdentity, first: relay_pb2.FromAgent | None) -> AgentHello:
    """Return the hello in the first message. Raises FrameError if it is not understood.

    Raises RefusedError where the message is none, or speaks for another pod.
    """
    hello = received(first) if first is not None else None
    if not isinstance(hello, AgentHello):
        raise RefusedError("the first message of an agent is AgentHello")
    own = f"{identity.pod}:{identity.uid[:8]}"
    if hello.node != own:
        raise RefusedError(f"the agent of {own} says that it is {hello.node}")
    if alien := [w.worker for w in hello.workers if not w.worker.startswith(f"{own}.")]:
        raise RefusedError(f"the agent of {own} speaks for {alien[0]}")
    return hello


async def _only_once(
    first: relay_pb2.FromAgent, rest: AsyncIterator[relay_pb2.FromAgent]
) -> AsyncIterator[relay_pb2.FromAgent]:
    """Yield the messages, without a second AgentHello: it could name another pod."""
    yield first
    async for packed in rest:
        if packed.WhichOneof("kind") != "agent_hello":
            yield packed


def _key(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    try:
        return _peer(context).uri
    except RefusedError:
        return ""


def _peer(context: grpc.aio.ServicerContext[Any, Any]) -> PodIdentity:
    certificates = list((context.auth_context() or {}).get("x509_pem_cert") or ())
    if len(certificates) != 1:
        raise RefusedError("there is no certificate")
    return identity_of(certificates[0])
