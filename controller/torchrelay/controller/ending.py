"""Tells whether the job goes on in these processes: it ends, it has fallen, or it was set aside. All agents are told."""

from __future__ import annotations

import signal
from collections.abc import Callable

from torchrelay.controller.containment.aside import Aside
from torchrelay.controller.migration.state import State
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.progress import ProgressTeller
from torchrelay.controller.restart.fallen import Fallen
from torchrelay.protocol.events import JobFell, JobFinished
from torchrelay.protocol.messages import RestartWorkers, StopJob
from torchrelay.protocol.names import EXIT_NO_SPARE_LEFT, EXIT_SUSPECT_NUMBER, NO_RANK


class Ending:
    """The job's end. `restarts`: a job that cannot go on in these processes may begin again elsewhere."""

    def __init__(self, job: Job, outbox: Outbox, progress: ProgressTeller, restarts: bool) -> None:
        self._job = job
        self._outbox = outbox
        self._progress = progress
        self._restarts = restarts
        self.ended: JobFinished | None = None
        self.fallen: Fallen | None = None
        """Why the job cannot go on in these processes. The holder of this core decides what becomes of the job."""
        self.aside: Aside | None = None
        """Set once torchrelay has failed in this job: the job trains on, and nothing is decided for it."""
        self.refuse_moves: Callable[[str], None] = lambda reason: None
        """Tells all who wait for a move that none is made any more, and why."""
        self.tell_report: Callable[[], None] = lambda: None
        """Tells what of the job's report has to be told before its last event."""

    @property
    def is_over(self) -> bool:
        """Whether nothing of this job goes on in these processes."""
        return self.ended is not None or self.fallen is not None

    @property
    def is_still(self) -> bool:
        """Whether nothing is decided any more."""
        return self.is_over or self.aside is not None

    def end_job(self, exit_code: int, reason: str, signal_number: int = signal.SIGTERM, by: str = "") -> None:
        """End the job on all nodes. If it is called more than once, the first reason counts."""
        if self.aside is not None:
            self._end_aside(exit_code, reason, by)
        elif self.ended is None:
            self.refuse_moves(reason)
            self.tell_report()
            self.ended = JobFinished(exit_code, reason, by)
            self._outbox.to_all_agents(stop_order(self.ended, signal_number))
            self._progress.tell_last()
            self._outbox.emit(self.ended)

    def end_check(self) -> None:
        """End a check, without a chance for the script to end as after a whole run."""
        self.end_job(0, "the check is over", signal.SIGKILL)

    def end_by_rank(self, exit_code: int, reason: str, rank: int, by_script: bool) -> None:
        """End the job since a rank has ended. `by_script`: by what the script does."""
        if not self.is_over:
            refused = "the script has failed" if by_script else reason
            self._tell_fall(Fallen(exit_code, reason, rank, refused=refused), by_script)
        self.end_job(exit_code, reason)

    def give_up(self, fallen: Fallen) -> None:
        """Give the job up: nothing is left that would let it go on in its processes.

        It ends, unless it may begin again elsewhere.
        """
        if not self._restarts:
            if not self.is_over and fallen.exit_code != EXIT_SUSPECT_NUMBER:
                self._tell_fall(fallen)
            # What stands and is saved must not run on from there: no handler of the script, nor what follows it.
            self.end_job(fallen.exit_code, fallen.reason, signal.SIGKILL if fallen.directory else signal.SIGTERM)
        elif not self.is_over:
            self.fallen = fallen
            self.refuse_moves(fallen.reason)
            self._outbox.log("warning", fallen.reason)

    def cannot_begin_again(self, reason: str) -> None:
        """Give up a job that was to begin again, and cannot."""
        self.give_up(Fallen(1, f"the job cannot begin again: {reason}", NO_RANK, refused=reason))

    def hand_over(self, reason: str) -> None:
        """End the processes here, but not the agents: the job begins again elsewhere."""
        self._outbox.to_all_agents(RestartWorkers(reason))
        self.ended = JobFinished(EXIT_NO_SPARE_LEFT, reason)

    def set_aside(self, reason: str, migration: State | None, now_s: float) -> None:
        """Decide nothing for this job any more: torchrelay has failed in it, so what is known of it may be wrong.

        `migration`: the one that is under way.
        """
        if self.aside is None and self.ended is None:
            self.aside = Aside(self._job, self._outbox, self._end_aside, reason)
            self.fallen = None
            self.aside.begin(migration, now_s)

    def _end_aside(self, exit_code: int, reason: str, by: str = "") -> None:
        if self.ended is None:
            self.ended = JobFinished(exit_code, reason, by)
            self._outbox.to_all_agents(stop_order(self.ended, signal.SIGTERM))
            self._outbox.emit(self.ended)

    def _tell_fall(self, fallen: Fallen, by_script: bool = False) -> None:
        furthest = max((w.seen_boundary for w in self._job.workers.values()), default=-1)
        saved_at = fallen.step if fallen.directory else -1
        self._outbox.emit(
            JobFell(
                fallen.rank,
                fallen.exit_code,
                fallen.reason,
                max(furthest, saved_at),
                by_script,
                fallen.directory,
                saved_at,
                fallen.refused,
                fallen.losses_at_step,
            )
        )


def stop_order(ended: JobFinished, signal_number: int = signal.SIGTERM) -> StopJob:
    """Return what an agent is told of the job's end."""
    return StopJob(ended.exit_code, int(signal_number), ended.reason)
