"""Watches who leads a job on several machines. Lets this machine follow that controller, or lead itself."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

from torchrelay.cli.command_line.options import RunOptions
from torchrelay.cli.leading.ask import ask, ask_all
from torchrelay.cli.leading.known_machines import KnownMachines, read_machines, write_machines
from torchrelay.cli.leading.seat import Seat
from torchrelay.cli.leading.succession import AGAIN_S, AWAY_S, Action, SuccessionStep, View, next_step
from torchrelay.protocol.messages import LeadReply, LeadRequest

log = logging.getLogger(__name__)

POLL_S = 1.0
QUIET_S = 2.5
"""Without an answer for so long, the others are asked."""
ALONE_S = 5.0
"""For another machine's file to be seen, before this one writes its own."""


class Hands(Protocol):
    """Carries the steps out. `LocalJob` does this."""

    @property
    def address(self) -> str:
        """Return the address of the controller that this machine follows."""

    @property
    def holds(self) -> bool:
        """Return whether that controller runs here."""

    async def turn_to(self, address: str) -> None: ...
    async def lead(self, epoch: int, known: LeadReply) -> bool:
        """Start a controller here. Return whether it has started."""

    async def join_another(self) -> None:
        """Join another controller: this machine's own has no machine yet, and the run's job is elsewhere."""

    async def fence(self, reason: str) -> None:
        """End all processes of this machine at once."""

    def barred(self) -> str:
        """Return why no other controller could lead the job; empty if one can."""

    def say(self, text: str) -> None: ...


class LeaderWatch:
    """Writes down in `seat` what it hears. `own_address`: where a controller of this machine would listen."""

    def __init__(
        self, options: RunOptions, run_id: str, secret: bytes, seat: Seat, own_address: str, hands: Hands
    ) -> None:
        self._options = options
        self._run_id = run_id
        self._secret = secret
        self._seat = seat
        self._own_address = own_address
        self._hands = hands
        self._heard_s = self._began_s = time.monotonic()
        self._tried = 0
        self._tried_s = self._began_s - AGAIN_S
        self._turned = 0
        self._said = ""
        self._fenced = False

    async def run(self) -> None:
        """Look again and again, until cancelled, or until the processes of this machine were ended."""
        while not self._fenced:
            begun_s = time.monotonic()
            await self._look(begun_s)
            await asyncio.sleep(max(begun_s + POLL_S - time.monotonic(), 0.0))

    async def _look(self, now_s: float) -> None:
        hands = self._hands
        address = self._hands.address
        reply = await ask(address, self._request(), self._secret)
        if address != hands.address:
            return
        self._turned = reply.epoch if reply is not None else self._turned
        is_ours = reply is not None and reply.job == (self._seat.known.job or reply.job)
        if reply is not None and is_ours and reply.quorum and reply.epoch >= self._seat.known.epoch:
            self._heard_s = time.monotonic()
            self._said = ""
            self._seat.known = reply
            self._seat.add(m.address for m in reply.members)
            if reply.begun:
                self._write_down()
            elif hands.holds:
                await self._give_way(address, reply)
        elif self._seat.known.epoch and time.monotonic() - self._heard_s >= QUIET_S:
            await self._seek(address)

    async def _give_way(self, own: str, reply: LeadReply) -> None:
        """Join another controller of the run if other machines gather around it, or train. It may not have been there before."""
        heard = await ask_all(self._others(own), LeadRequest(self._options.node_rank), self._secret)
        if any(r.job != reply.job and r.quorum and (r.begun or r.epoch > reply.epoch) for _, r in heard.replies):
            await self._hands.join_another()

    def _others(self, current: str) -> list[str]:
        return [a for a in self._seat.addresses if a not in (current, self._own_address)]

    async def _seek(self, current: str) -> None:
        known = self._seat.known
        now_s = time.monotonic()
        answers = (await ask_all(self._others(current), self._request(), self._secret)).replies
        if self._hands.address != current:
            return
        step = next_step(
            View(
                self._options.node,
                self._options.node_rank,
                self._options.nnodes,
                known,
                now_s - self._heard_s,
                answers,
                self._turned,
                self._hands.holds,
                self._tried,
                now_s - self._tried_s,
                self._hands.barred(),
            )
        )
        await self._carry_out(step)

    async def _carry_out(self, step: SuccessionStep) -> None:
        if self._said != step.reason and (step.action is not Action.WAIT or self._is_away):
            self._said = step.reason
            self._hands.say(step.reason)
        if step.action is Action.FOLLOW:
            self._turned = step.epoch
            await self._hands.turn_to(step.address)
        elif step.action is Action.FENCE:
            self._fenced = True
            await self._hands.fence(step.reason)
        elif step.action is Action.LEAD:
            self._tried_s = time.monotonic()
            self._tried = step.epoch
            if await self._hands.lead(step.epoch, self._seat.known):
                self._turned = step.epoch

    @property
    def _is_away(self) -> bool:
        return time.monotonic() - self._heard_s >= AWAY_S

    def _request(self) -> LeadRequest:
        seen = read_machines(self._options.jit_dirs[0], self._run_id)
        job = self._seat.known.job
        by_another = seen is not None and seen.job == job and (seen.by != self._options.node or self._hands.holds)
        return LeadRequest(
            self._options.node_rank, self._options.node, job, self._seat.known.epoch, bool(job) and by_another
        )

    def _write_down(self) -> None:
        """Write the machines down, for this machine if it comes back.

        If machines share the folder, the leader writes, for the others to see.
        """
        known = self._seat.known
        folder = self._options.jit_dirs[0]
        seen = read_machines(folder, self._run_id)
        there = KnownMachines(known.job, self._options.node, tuple(m.address for m in known.members))
        if seen is not None and seen.job == known.job:
            is_mine = seen.by == self._options.node
            if seen == there or not (is_mine or self._hands.holds):
                return
        elif not self._hands.holds and time.monotonic() - self._began_s < ALONE_S:
            return
        try:
            write_machines(folder, self._run_id, there)
        except OSError as e:
            log.warning("%s cannot be written: a machine that comes back may not find its job: %s", folder, e)
