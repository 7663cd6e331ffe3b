"""Asks controllers who leads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from torchrelay.cli.command_line.addresses import parse_address
from torchrelay.cli.controller_client.control import Control
from torchrelay.protocol.errors import StrangerError, TorchrelayError
from torchrelay.protocol.messages import LeadReply, LeadRequest

ANSWER_S = 2.0


@dataclass(frozen=True)
class LeadAnswers:
    """Who answers, by HOST:PORT. `strangers`: where a program does that does not know the job's secret."""

    replies: tuple[tuple[str, LeadReply], ...] = ()
    strangers: tuple[str, ...] = ()


async def ask(address: str, request: LeadRequest, secret: bytes) -> LeadReply | None:
    """Return the reply, or None if nobody of this job answers at HOST:PORT."""
    answer = await _answer(address, request, secret)
    return answer if isinstance(answer, LeadReply) else None


async def ask_all(addresses: Iterable[str], request: LeadRequest, secret: bytes) -> LeadAnswers:
    """Return who answers at these addresses, each HOST:PORT."""
    unique = list(dict.fromkeys(addresses))
    answers = list(zip(unique, await asyncio.gather(*(_answer(address, request, secret) for address in unique))))
    return LeadAnswers(
        tuple((address, answer) for address, answer in answers if isinstance(answer, LeadReply) and answer.epoch),
        tuple(address for address, answer in answers if isinstance(answer, StrangerError)),
    )


async def _answer(address: str, request: LeadRequest, secret: bytes) -> LeadReply | TorchrelayError:
    """Ask over a new connection: one that has failed waits before it tries again."""
    async with Control(*parse_address("controller", address), secret) as control:
        try:
            return await control.lead(request, ANSWER_S)
        except TorchrelayError as e:
            return e
