"""A command begins: is its job led somewhere already, and what is this machine to it?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchrelay.cli.leading.ask import ask_all
from torchrelay.protocol.errors import FatalError, UserError
from torchrelay.protocol.messages import LeadReply, LeadRequest

ASK_S = 0.3
REFUSED_S = 20.0
"""Longer than it takes to note that a machine is gone which comes back at once."""


ANEW_S = 180.0
"""For the machine that leads to end all that the job had before, and begin."""


@dataclass(frozen=True)
class FoundController:
    """A controller at `address`, HOST:PORT."""

    address: str
    reply: LeadReply


@dataclass(frozen=True)
class Asked:
    """The controller with the highest epoch beyond `after` is looked for, at `addresses`.

    `leads`: this machine starts one if there is none. `again`: the job is started anew, so that the others are about to come, too.
    """

    node_rank: int
    addresses: Sequence[str]
    after: int
    leads: bool
    again: bool


async def find(asked: Asked, secret: bytes, say: Callable[[str], None]) -> FoundController | None:
    """None if this machine is to lead.

    Raises UserError if the controller has no place for this machine, FatalError if the job is not started anew after all.
    """
    addresses, request = asked.addresses, LeadRequest(asked.node_rank)
    began_s = time.monotonic()
    told = False
    while True:
        found = [(a, r) for a, r in await ask_all(addresses, request, secret) if r.epoch > asked.after]
        if not found and asked.leads:
            return None
        if asked.again and time.monotonic() - began_s >= ANEW_S:
            raise FatalError(f"no machine has started the job anew within {ANEW_S:.0f} s")
        if found:
            address, reply = max(found, key=lambda each: each[1].epoch)
            if reply.place and reply.quorum:
                return FoundController(address, reply)
            if reply.refused and time.monotonic() - began_s >= REFUSED_S:
                raise UserError(
                    f"the job at {address} does not take this machine: {reply.refused}; give each machine its own --node-rank"
                )
        elif not told:
            told = True
            say(f"waiting for the controller at {' or '.join(addresses)}")
        await asyncio.sleep(ASK_S)
