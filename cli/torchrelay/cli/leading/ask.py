"""Asks controllers who leads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from torchrelay.cli.control import Control
from torchrelay.cli.options import parse_address
from torchrelay.protocol.errors import TorchrelayError
from torchrelay.protocol.messages import LeadReply, LeadRequest

ANSWER_S = 2.0


async def ask(address: str, request: LeadRequest, secret: bytes) -> LeadReply | None:
    """None if nobody answers at HOST:PORT. A connection of its own: one that has failed waits before it tries again."""
    async with Control(*parse_address("controller", address), secret) as control:
        try:
            return await control.lead(request, ANSWER_S)
        except TorchrelayError:
            return None


async def ask_all(addresses: Iterable[str], request: LeadRequest, secret: bytes) -> list[tuple[str, LeadReply]]:
    """Whoever answers, with its address."""
    unique = list(dict.fromkeys(addresses))
    replies = await asyncio.gather(*(ask(address, request, secret) for address in unique))
    return [(address, reply) for address, reply in zip(unique, replies) if reply is not None and reply.epoch]
