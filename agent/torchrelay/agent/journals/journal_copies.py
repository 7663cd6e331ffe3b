"""Keeps copies of the journals of other nodes' workers, for the loss of a whole node."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
from collections.abc import Callable

from torchrelay.protocol.errors import FatalError, FrameError
from torchrelay.protocol.journals import journal_copy as wire
from torchrelay.protocol.machine.addresses import bind_address
from torchrelay.protocol.messages import JournalContent
from torchrelay.protocol.security.tls import of_one_server
from torchrelay.protocol.security.tls_contexts import of_server

log = logging.getLogger(__name__)

GREETING_TIMEOUT_S = 10.0
MAX_CONNECTIONS = 1024


class KeptJournals:
    """The copies. `is_own(worker)`: whether the worker is of this node: then its journals are in this node's own shared memory."""

    def __init__(self, host: str, is_own: Callable[[str], bool]) -> None:
        self._host = host
        self._is_own = is_own
        self._copies: dict[str, wire.JournalCopy] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._token = secrets.token_bytes(wire.TOKEN_BYTES)
        self._key, self._certificate = of_one_server("torchrelay journals")
        self.invitation = wire.invitation(self._token, self._certificate)
        self.port = 0

    async def start(self) -> None:
        """Listen for copies. Raises FatalError where the node's address cannot be listened on."""
        try:
            self._server = await asyncio.start_server(
                self._connected,
                bind_address(self._host),
                0,
                ssl=of_server(self._key + self._certificate),
                ssl_handshake_timeout=GREETING_TIMEOUT_S,
            )
        except OSError as e:
            raise FatalError(f"copies of other nodes' journals cannot be taken at {self._host}: {e}") from e
        self.port = int(self._server.sockets[0].getsockname()[1])

    @property
    def newest_gates(self) -> dict[str, int]:
        """The newest gate of each worker whose journals are here.

        A worker that copies to another node by now stays with an old gate.
        """
        return {worker: max(copy.gates) for worker, copy in sorted(self._copies.items()) if copy.gates}

    def content(self, worker: str) -> JournalContent:
        """Return what was copied from the worker; empty if nothing was."""
        return self._copies.get(worker, wire.JournalCopy()).content(worker)

    def forget(self, worker: str) -> None:
        """Drop the copies of a worker that no process needs any more; else they would be kept as long as the agent lives."""
        self._copies.pop(worker, None)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if len(self._tasks) <= MAX_CONNECTIONS:
                await self._serve(reader, writer)
        except (asyncio.IncompleteReadError, asyncio.TimeoutError, OSError) as e:
            log.debug("a connection for copies of journals ended: %s", e)
        except FrameError as e:
            log.warning("refused on the port for copies of journals: %s", e)
        except asyncio.CancelledError:
            log.debug("a connection for copies of journals is closed, since the agent ends")
        finally:
            writer.transport.abort()  # whoever would not answer to a farewell would keep the connection
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        worker = await asyncio.wait_for(self._greet(reader), GREETING_TIMEOUT_S)
        copy = self._copies[worker] = wire.JournalCopy()
        while True:
            head = wire.read_frame(await reader.readexactly(wire.FRAME_BYTES))
            payload = await reader.readexactly(head.length_bytes)
            wire.check(head, payload)
            copy.keep(head, payload)
            if head.kind == wire.GATE:
                writer.write(wire.answer(head.number))

    async def _greet(self, reader: asyncio.StreamReader) -> str:
        token, length = wire.read_greeting(await reader.readexactly(wire.GREETING_BYTES))
        if not hmac.compare_digest(token, self._token):
            raise FrameError("the token is wrong")
        worker = (await reader.readexactly(length)).decode(errors="replace")
        if self._is_own(worker):
            raise FrameError(f"{worker} is a worker of this node")
        return worker
