"""What follows from a job's state as a whole, whatever has changed it, and how soon to look at it again."""

from __future__ import annotations

import math

from torchrelay.controller.parts import Parts
from torchrelay.controller.picture.worker import Worker
from torchrelay.protocol.messages import MayFinish

CALM_TICK_S = 1.0
"""While all goes well, nothing but agents that stay away is noticed by the clock alone. Where agents are asked to tell more rarely,
since one controller has many jobs, the clock is looked at as rarely."""
ALERT_TICK_S = 0.05
"""While a verdict or a deadline may be due."""
SILENCE_TICK_S = 0.25
"""While all that may be due is to give up a node for its silence, which is told in seconds. Where a controller is short of
processor time the agents of many jobs are late at once."""
SMALL_JOB = 64
SETTLE_S_PER_PROCESS = 50e-6
"""Processes beyond SMALL_JOB: so much later a job is settled after the last time."""
UNSETTLED_FACTOR = 4
"""Of that: after which time the clock is looked at, where nothing but words of ranks waits to be settled."""


class Settling:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._job = parts.job
        self._ending = parts.ending
        self._settled_s = -math.inf
        self._unsettled = False
        self._looked_s = -math.inf
        self._is_anyone_silent = False
        self.stands = False
        """Whether ranks seemed to stand still when that was last looked at."""
        self._released = False

    def settle_soon(self, now_s: float) -> None:
        """At once in a small job. In a large one all its ranks' words would each cost a look at all of its ranks."""
        self._unsettled = True
        if now_s - self._settled_s >= self._rest_s:
            self.settle(now_s)

    def settle(self, now_s: float) -> None:
        """Do what follows from the state as a whole."""
        self._settled_s = now_s
        self._unsettled = False
        if not self._all_are_gathered(now_s) or self._ending.is_over or not self._parts.start.has_begun:
            return
        parts = self._parts
        parts.divergence.settle(now_s)
        parts.arming.settle()
        parts.rehearsals.settle(now_s)
        parts.pool.settle(now_s)
        is_moving = parts.driver.migration is not None
        finishing = any(w.finishing for w in self._job.rank_workers)
        if parts.judge.settle(finishing or is_moving, now_s) and parts.config.buddy_every:
            parts.buddies.settle(parts.judge.known())
        if self._ending.is_over:
            return
        if parts.driver.migration is None and self._job.protection == "on":
            parts.leftovers.settle()
        ranks = self._job.rank_workers
        if len(ranks) == self._job.world_size:
            self._come_further(ranks, now_s)

    def tick_every_s(self, now_s: float) -> float:
        """How much time may pass now until the next tick; any other call may shorten it."""
        if self._ending.is_still:
            return CALM_TICK_S
        parts = self._parts
        pending = parts.driver.migration is not None or parts.exits.is_waiting or parts.planned_moves.is_waiting
        pending = pending or parts.health.is_waiting or parts.numbers.is_waiting
        pending = pending or not parts.leading.is_led
        if not pending and (self._settled_s >= self._looked_s or now_s - self._looked_s >= self._rest_s):
            self._looked_s = now_s  # in a large job each look costs, and there are thousands of words a second
            self.stands = parts.hang_watch.is_uneasy(now_s)
            self._is_anyone_silent = parts.nodes.is_uneasy(now_s)
        if pending or self.stands:
            return max(ALERT_TICK_S, self._rest_s)
        if self._unsettled:  # what is due by the clock besides would cost as much again as settling
            return max(ALERT_TICK_S, UNSETTLED_FACTOR * self._rest_s)
        often_s = SILENCE_TICK_S if self._is_anyone_silent else max(CALM_TICK_S, self._job.tell_s)
        return max(often_s, self._rest_s)

    @property
    def _rest_s(self) -> float:
        """Between two looks at all of a large job: each costs in proportion to its size."""
        return max(0, len(self._job.workers) - SMALL_JOB) * SETTLE_S_PER_PROCESS

    def _all_are_gathered(self, now_s: float) -> bool:
        """Whether the job need not wait for processes to begin again in."""
        gathering = self._parts.gathering
        if gathering is None or gathering.is_over or self._ending.is_over:
            return True
        gathering.settle(now_s)
        if not gathering.is_over:
            return False
        self._parts.entrance.gathers = False
        self._parts.start.consider(now_s)
        return True

    def _come_further(self, ranks: list[Worker], now_s: float) -> None:
        """Tell how far all ranks are, and end the job once they are at their end."""
        parts = self._parts
        self._job.clock.reached(self._job.boundary, now_s)
        parts.progress.tell(now_s)
        busy = parts.driver.migration is not None or parts.rehearsals.is_under_way
        if not busy and all(w.finishing for w in ranks):
            self._release(ranks)
            if not any(w.alive for w in ranks):
                self._ending.end_job(0, "all ranks are done")

    def _release(self, ranks: list[Worker]) -> None:
        if not self._released:
            self._released = True
            self._parts.driver.clear_checkpoints(keep=0)
            for worker in ranks:
                if worker.alive:
                    self._parts.outbox.to_worker(worker.worker, MayFinish())
