"""Requests for planned migrations: accepted, refused with the reason, or kept until their time comes."""

from __future__ import annotations

from dataclasses import dataclass

from torchrelay.controller.execution.driver import Driver
from torchrelay.controller.migration import events as m
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.protocol.events import MoveNotMade
from torchrelay.protocol.messages import MigrateReply
from torchrelay.protocol.words.causes import MigrationCause
from torchrelay.protocol.words.phases import SAVE
from torchrelay.protocol.words.rank_words import JOB_OVER, WAITS_FOR_SPARE


@dataclass
class _WaitingMove:
    """A request for a move. `worker` is to be left; `waits`: why it could not begin when that was last looked at.

    `lasts`: it waits for a spare, too, until it is taken back.
    """

    rank: int
    asked: str
    worker: str
    lasts: bool = False
    waits: str = ""
    cause: MigrationCause = MigrationCause.ASKED
    told: str = ""


class PlannedMoves:
    def __init__(self, job: Job, outbox: Outbox, driver: Driver) -> None:
        self._job = job
        self._outbox = outbox
        self._driver = driver
        self._waiting_moves: list[_WaitingMove] = []

    @property
    def is_waiting(self) -> bool:
        """Whether one may begin at any moment. A request that waits for a spare waits for what is told."""
        return any(not w.told for w in self._waiting_moves)

    def migrate(self, rank: int, reason: str, now_s: float, by: str = "") -> MigrateReply:
        if refusal := self._never(rank) or ("" if self._job.spares_to_come(rank) else self._no_spare(rank)):
            return MigrateReply(False, "", refusal)
        not_now, advice = self._not_now(rank)
        if not_now:
            return MigrateReply(False, "", "; ".join(filter(None, (not_now, advice))), again=True)
        name = self._driver.begin(m.MoveRequested(rank, reason or "asked for", by=by), now_s)
        return MigrateReply(
            True, name, f"rank {rank} moves as soon as a spare is ready for it; training goes on meanwhile"
        )

    def save(self, reason: str, no_room: str, now_s: float, by: str = "") -> MigrateReply:
        """Save a checkpoint of all ranks; training goes on. `no_room`: what its folder lacks."""
        job = self._job
        finishing = [w.rank for w in job.rank_workers if w.finishing]
        refusal = self._unprotected() or self._driver.saving.barred or no_room
        if not refusal and finishing:
            refusal = f"rank {finishing[0]} has reached the end of its script"
        if refusal:
            return MigrateReply(False, "", refusal)
        not_now, advice = self._stands_in_the_way()
        if not_now:
            return MigrateReply(False, "", "; ".join(filter(None, (not_now, advice))), again=True)
        name = self._driver.begin(m.SaveRequested(reason or "asked for", by), now_s)
        return MigrateReply(True, name, "all ranks save what they hold at one of the next steps, and go on")

    def want(
        self,
        rank: int,
        asked: str,
        now_s: float,
        lasts: bool = False,
        cause: MigrationCause = MigrationCause.ASKED,
    ) -> None:
        """Ask for a move that begins when it can. The asker cannot be told to ask again later.

        It is a process, or (`lasts`) evidence that stays true.
        """
        self._waiting_moves.append(_WaitingMove(rank, asked, self._job.holders.get(rank, ""), lasts, cause=cause))
        self.tick(now_s)

    def drop(self, asked: str) -> None:
        """Drop the requests that were made for this reason, which is over."""
        self._waiting_moves = [w for w in self._waiting_moves if w.asked != asked]

    def is_wanted(self, rank: int) -> bool:
        """Return whether the rank is to move already, or does."""
        migration = self._driver.migration
        return any(w.rank == rank for w in self._waiting_moves) or (
            migration is not None and rank in migration.state.lost
        )

    def tick(self, now_s: float) -> None:
        for move in list(self._waiting_moves):
            if self._job.holders.get(move.rank) != move.worker:
                self._waiting_moves.remove(move)
                self.refuse(move.rank, move.asked, f"{move.worker}, which was to be left, has lost it by now")
                continue
            no_spare = self._no_spare(move.rank)
            to_come = self._job.spares_to_come(move.rank)
            if refusal := self._never(move.rank) or ("" if move.lasts or to_come else no_spare):
                self._waiting_moves.remove(move)
                self.refuse(move.rank, move.asked, _why(refusal, move))
                continue
            if no_spare != move.told:
                move.told = no_spare
                if no_spare:
                    self.refuse(move.rank, move.asked, f"{no_spare}; {WAITS_FOR_SPARE}")
            if no_spare:
                continue
            move.waits, _ = self._not_now(move.rank)
            if not move.waits:
                self._waiting_moves.remove(move)
                self._driver.begin(m.MoveRequested(move.rank, move.asked, move.cause.value), now_s)

    def refuse(self, rank: int, asked: str, reason: str) -> None:
        """Tell by an event that a move is not made, since the asker does not listen."""
        self._outbox.emit(MoveNotMade("", rank, asked, reason))

    def job_over(self, reason: str) -> None:
        """Refuse all requests. To be called before the job's last event."""
        self._driver.job_over(reason)
        for move in self._waiting_moves:
            self.refuse(move.rank, move.asked, _why(f"{JOB_OVER}: {reason}", move))
        self._waiting_moves.clear()

    def _never(self, rank: int) -> str:
        job = self._job
        if not 0 <= rank < job.world_size:
            return f"there is no rank {rank}; the job has ranks 0 to {job.world_size - 1}"
        if unprotected := self._unprotected():
            return unprotected
        if rank in job.holders and job.holder(rank).finishing:
            return f"rank {rank} has reached the end of its script"
        return ""

    def _unprotected(self) -> str:
        job = self._job
        return f"this job is not protected: {job.protection_reason}" if job.protection == "off" else ""

    def _no_spare(self, rank: int) -> str:
        job = self._job
        if not job.spares:
            return "there is no spare to move it to"
        if not (spares := job.spares_for(rank)):
            if job.imports_differ:
                return f"no spare is on a machine where the script imports the same files as rank {rank}"
            return f"none of the {len(job.spares)} spare processes has the local rank {rank % job.local_world_size}, as it has"
        if all(job.quarantined(w) for w in spares):
            return "every spare is on a device or node in quarantine"
        return ""

    def _not_now(self, rank: int) -> tuple[str, str]:
        """Return what stands in the way of a move, and what to do about it; empty if nothing does."""
        job = self._job
        if (found := self._stands_in_the_way())[0]:
            return found
        if not any(w.warm for w in job.spares_for(rank) if not job.quarantined(w)):
            return "the spare is still starting", "ask again in a few seconds"
        return "", ""

    def _stands_in_the_way(self) -> tuple[str, str]:
        """Return why all ranks cannot stop for anything now, and what to do about it; empty if they can."""
        migration = self._driver.migration
        if migration is not None:
            s = migration.state
            what = "a checkpoint is saved" if s.kind == SAVE else f"rank {s.rank}"
            return f"{s.migration} is under way ({what}, {s.phase.value})", "ask again when it is over"
        if because := self._job.unprotected_because(planned=True):
            return f"not yet: {because}", ""
        return "", ""


def _why(end: str, move: _WaitingMove) -> str:
    return f"{end}; the move could not begin before: {move.waits}" if move.waits else end
