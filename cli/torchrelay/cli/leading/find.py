"""A command begins: is its job led somewhere already, and what is this machine to it?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchrelay.cli.leading.ask import ask_all
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.messages import LeadReply, LeadRequest

ASK_S = 0.3
REFUSED_S = 20.0
"""Longer than it takes to note that a machine is gone which comes back at once."""


@dataclass(frozen=True)
class Found:
    """A controller at `address`, HOST:PORT."""

    address: str
    reply: LeadReply


async def find(
    node_rank: int, addresses: Sequence[str], after: int, leads: bool, secret: bytes, say: Callable[[str], None]
) -> Found | None:
    """The controller with the highest epoch beyond `after`. With `leads` None if there is none now; otherwise it is waited for.

    Raises UserError if it has no place for this machine.
    """
    refused_s = time.monotonic() + REFUSED_S
    told = False
    while True:
        request = LeadRequest(node_rank)
        found = [(a, r) for a, r in await ask_all(addresses, request, secret) if r.epoch > after]
        if not found and leads:
            return None
        if found:
            address, reply = max(found, key=lambda each: each[1].epoch)
            if reply.place and reply.quorum:
                return Found(address, reply)
            if reply.refused and time.monotonic() >= refused_s:
                raise UserError(
                    f"the job at {address} does not take this machine: {reply.refused}; give each machine its own --node-rank"
                )
        elif not told:
            told = True
            say(f"waiting for the controller at {' or '.join(addresses)}")
        await asyncio.sleep(ASK_S)
