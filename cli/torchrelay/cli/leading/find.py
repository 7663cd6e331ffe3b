"""A command begins: is its job led somewhere already, and what is this machine to it?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchrelay.cli.command_line.addresses import parse_address
from torchrelay.cli.command_line.options import RunOptions
from torchrelay.cli.leading.ask import ask_all
from torchrelay.protocol.errors import FatalError, UserError
from torchrelay.protocol.messages import LeadReply, LeadRequest
from torchrelay.protocol.names import ENV_SECRET

ASK_S = 0.3
REFUSED_S = 20.0
"""Longer than it takes to note that a machine is gone which comes back at once."""


STRANGER_S = 20.0
"""Longer than a job that has just been stopped needs for its end."""
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
    """Find the controller to follow; None if this machine is to lead.

    Raises UserError if the controller has no place for this machine, or a program answers there that does not know the job's
    secret; FatalError if the job is not started anew after all.
    """
    addresses = asked.addresses
    request = LeadRequest(asked.node_rank)
    began_s = time.monotonic()
    told = ""
    alone_s = began_s
    """Since when nobody but strangers has answered."""
    while True:
        heard = await ask_all(addresses, request, secret)
        found = [(a, r) for a, r in heard.replies if r.epoch > asked.after]
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
        if heard.replies or not heard.strangers:
            alone_s = time.monotonic()
        elif time.monotonic() - alone_s >= STRANGER_S:
            raise UserError(_of_strangers(heard.strangers))
        if not found and (text := await _waiting(addresses)) != told:
            told = text
            say(text)
        await asyncio.sleep(ASK_S)


async def _waiting(addresses: Sequence[str]) -> str:
    """Return what this machine waits for, and which host names it does not know: a name server may know them later."""
    hosts = dict.fromkeys(parse_address("controller", address)[0] for address in addresses)
    unknown = [text for text in await asyncio.gather(*map(_why_unknown, hosts)) if text]
    return f"waiting for the controller at {' or '.join(addresses)}" + "".join(f"; {text}" for text in unknown)


async def _why_unknown(host: str) -> str:
    try:
        await asyncio.get_running_loop().getaddrinfo(host, None)
    except OSError as e:
        return f"{host} is not known here ({e.strerror}): check --master-addr, --controller and the network"
    return ""


def _of_strangers(addresses: Sequence[str]) -> str:
    where = " and ".join(addresses)
    return (
        f"a program answers at {where} that does not know this job's secret: set the same {ENV_SECRET} on all machines. "
        "If it is another job, end that, or give this one another --controller-port"
    )


def of_found(options: RunOptions, reply: LeadReply) -> RunOptions:
    """Return the options of a machine whose job has a controller already, with what that controller says of its processes."""
    return replace(
        options,
        node=reply.place,
        joins=reply.begun,
        resume=Path(reply.resume_dir) if reply.resume_dir else None,
        restarts_done=reply.restarts_done,
        scripts_begun=reply.scripts_begun,
    )
