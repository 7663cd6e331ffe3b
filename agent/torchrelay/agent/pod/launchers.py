"""Tells launchers in this pod what to do, and shows them by files how the job stands."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from pathlib import Path

import grpc.aio

from torchrelay.agent.pod.enrolment import PodCredentials
from torchrelay.protocol import relay_pb2_grpc
from torchrelay.protocol.messages import Begin, Hello, LaunchReply, LaunchRequest
from torchrelay.protocol.names import OVER_FILE, PROTECTED_FILE, WorkerId
from torchrelay.protocol.transport.convert import from_proto, to_proto

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.2
MAX_BACKOFF_S = 2.0
CALL_S = 10.0


class Launchers:
    """The launchers of a pod. `send` gives an order to a process of this pod."""

    def __init__(self, credentials: PodCredentials, controller: str, send: Callable[[WorkerId, Begin], None]) -> None:
        self._credentials = credentials
        self._controller = controller
        self._send = send
        self._asked: dict[WorkerId, asyncio.Task[None]] = {}

    def connected(self, launcher: WorkerId, hello: Hello) -> None:
        """Answer a launcher, or one of several processes that another launcher than torchrun has started.

        Such a process is told why it is not protected.
        """
        if not hello.launcher:
            refusal = _several(hello.launch["LOCAL_WORLD_SIZE"])
            log.warning("not protected: %s", refusal)
            self._send(launcher, Begin(launcher, "", False, refusal=refusal))
            return
        self._asked[launcher] = asyncio.create_task(self._answer(launcher))

    def gone(self, launcher: WorkerId) -> None:
        if (task := self._asked.pop(launcher, None)) is not None:
            task.cancel()

    async def _answer(self, launcher: WorkerId) -> None:
        """Ask the controller what the launcher is to do, until it answers, and tell the launcher.

        A refusal is no answer: the launcher waits for a while, and then runs as if no agent were here.
        """
        await self._credentials.ready.wait()
        backoff_s = FIRST_BACKOFF_S
        while True:
            try:
                reply = await self._ask()
            except grpc.aio.AioRpcError as e:
                log.info("nobody says what a launcher is to do: %s", e.details() or e.code().name)
                await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
                backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)
                continue
            log.info("a launcher %s: %s", "parks what it starts" if reply.spare else "begins", reply.reason)
            self._send(launcher, Begin(launcher, "", reply.spare))
            return

    async def _ask(self) -> LaunchReply:
        async with self._credentials.channel(self._controller) as channel:
            stub = relay_pb2_grpc.RelayStub(channel)
            reply: LaunchReply = from_proto(await stub.Launch(to_proto(LaunchRequest()), timeout=CALL_S))
        return reply


def _several(count: str) -> str:
    return (
        f"its launcher starts {count} training processes in this pod, and is not torchrun: of such a one torchrelay protects one "
        "for each pod"
    )


class Marks:
    """Files in the pod's run folder, for launchers and for processes that come too late."""

    def __init__(self, run_folder: Path) -> None:
        self._protected = run_folder / PROTECTED_FILE
        self._over = run_folder / OVER_FILE

    def begin(self) -> None:
        self._over.unlink(missing_ok=True)

    def protected(self, on: bool) -> None:
        try:
            if on:
                self._protected.touch()
            else:
                self._protected.unlink(missing_ok=True)
        except OSError as e:
            log.error("launchers cannot be told that this pod is %sprotected: %s", "" if on else "not ", e)

    def over(self, exit_code: int) -> None:
        """Mark the job as over, before any process ends: from now on nothing is started again."""
        self.protected(False)
        with contextlib.suppress(OSError):
            self._over.write_text(str(exit_code))
