"""Waits until the checks of all machines of a job have been compared, or the job itself answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from torchrelay.cli.leading.known_machines import remove_machines, run_id_of
from torchrelay.cli.preflight.facts import Compared
from torchrelay.cli.preflight.meeting import MeetingPlace, Party, ask, of_checks, of_job

ASK_S = 1.0


class MeetingHost(Protocol):
    """Has the checks meet on this machine."""

    async def open(self, place: MeetingPlace, secret: bytes) -> str:
        """Begin to. Return why that is impossible; empty if it is not."""

    async def close(self, all_came: bool) -> None:
        """End, and where all checks have come, not before each of them has been told."""


@dataclass(frozen=True)
class ChecksWait:
    """For how long a check waits for others. `say(text)` tells the user for whom."""

    wait_s: float
    host: MeetingHost
    say: Callable[[str], None]


async def meet(place: MeetingPlace, wait: ChecksWait) -> Compared:
    """Return what the job says of this machine, if it is there; else what comes of comparing the checks of all machines.

    Where the time is over before, that says which machines are missing.
    """
    found = await ask(place.addresses, of_job(place))
    if found.nodes or not wait.wait_s:
        return found
    party = of_checks(place)
    last = Compared()
    try:
        last = await _among_checks(place, party, wait)
        return last
    finally:
        if not last.nodes or not last.missing:  # others still read it
            for folder in place.options.jit_dirs:
                remove_machines(folder, run_id_of(party.secret), [])


async def _among_checks(place: MeetingPlace, party: Party, wait: ChecksWait) -> Compared:
    ends_s = time.monotonic() + wait.wait_s
    is_open = said = all_came = False
    last = Compared(missing=place.others)
    try:
        while True:
            asked_s = time.monotonic()
            job, checks = await asyncio.gather(ask(place.addresses, of_job(place)), ask(place.addresses, party))
            if job.nodes:
                return job
            last = _later(last, checks, place)
            if all_came := not last.missing:
                return last
            if strangers := tuple(each for each in job.strangers if each in checks.strangers):
                return Compared(strangers=strangers)
            if not is_open and not checks.address and place.options.controller is None:
                if problem := await wait.host.open(place, party.secret):
                    return replace(job, problem=problem)
                is_open = True
            elif not said:
                said = True
                wait.say(f"waiting {wait.wait_s:g} s for the checks of {', '.join(last.missing)}")
            if time.monotonic() >= ends_s:
                return replace(last, address=last.address or job.address, problem=job.problem, waited_s=wait.wait_s)
            await asyncio.sleep(asked_s + ASK_S - time.monotonic() if said else 0)
    finally:
        await wait.host.close(all_came)


def _later(last: Compared, heard: Compared, place: MeetingPlace) -> Compared:
    """Return what is known of the others: what was heard, unless nobody answers, or some have ended that had been compared."""
    missing = tuple(each for each in place.others if each not in heard.nodes)
    ended = bool(last.address) and not heard.address
    return last if ended or len(missing) > len(last.missing) else replace(heard, missing=missing)
