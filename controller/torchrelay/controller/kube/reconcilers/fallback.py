"""What becomes of a job that cannot go on in its processes: carries out what `decide.ladder` chooses."""

from __future__ import annotations

import dataclasses
import logging
import time

from torchrelay.controller.kube.decide.ladder import FAIL, LadderCheckpoint, LadderSituation, Rung, choose_rung
from torchrelay.controller.kube.jobs.ledger import Ledger
from torchrelay.controller.kube.jobs.run import EXIT_REMOVED, JobRun
from torchrelay.controller.restart.job_restart import RestartPlan
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.logs.log_records import of_run
from torchrelay.protocol.messages import FindCheckpoints

log = logging.getLogger(__name__)

FIND_S = 60.0
"""For an agent to look through the folder of checkpoints."""
REMOVED_S = 30.0
"""A job that begins again and none of whose own pods is there any more has been deleted: its owner would make new ones sooner."""


class Fallback:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def look(self, run: JobRun, now_s: float) -> None:
        """One look at one job."""
        if run.gathers:
            self._look_after_gathering(run, now_s)
        if run.core.fallen is None or run.core.ended is not None:
            return
        situation = self._situation(run, now_s)
        if situation is None:
            return
        rung = choose_rung(situation)
        of_run(log, run.key).warning("%s: %s: %s", run.key, rung.rung, rung.reason)
        run.story.fell(rung.tried, time.time())
        if rung.rung == FAIL:
            began = f"; it began with: {run.losses.began_with}" if run.losses.began_with else ""
            run.relay.end(run.core.fallen.exit_code, f"{run.core.fallen.reason}; nothing is left: {rung.reason}{began}")
        else:
            reason = f"begins again at step {rung.step}: {rung.reason}"
            self._ledger.begin_again(run, _restart(run, rung), reason, rung.rung)

    def _situation(self, run: JobRun, now_s: float) -> LadderSituation | None:
        """None while an agent still looks."""
        fallen = run.core.fallen
        options = run.options
        assert fallen is not None
        spares = run.core.driver.spares
        refused = spares.refused.get(fallen.rank)
        no_spare = refused.spare if refused is not None and refused.is_final else fallen.no_spare
        situation = LadderSituation(
            fallen.rank,
            options.fallback,
            f"{no_spare}: {run.trouble}" if no_spare and run.trouble else no_spare,
            options.checkpoint_dir,
            fallen.directory,
            fallen.step,
            fallen.refused,
            restarts=run.restarts,
            not_in_place=refused.in_place if refused is not None else "",
            lost_at=spares.respawns.boundary(fallen.rank),
            losses_at_step=fallen.losses_at_step,
        )
        needs_found = kube.CHECKPOINT in options.fallback and options.checkpoint_dir
        if not needs_found or choose_rung(situation).rung != FAIL:
            return situation
        unseen = self._ask(run, now_s)
        if unseen is None:
            return None
        found = run.core.found.found if run.core.found is not None else ()
        return dataclasses.replace(
            situation,
            found=[LadderCheckpoint(f.path, f.step, f.broken, f.ours) for f in found],
            of_others=run.core.found.of_others if run.core.found is not None else 0,
            unseen=unseen,
        )

    def _ask(self, run: JobRun, now_s: float) -> str | None:
        """Why nothing can be seen on disk, or empty if it was; None while the answer is awaited."""
        if run.core.found is not None:
            return run.core.found.reason
        there = [n.node for n in run.core.job.nodes.values() if not n.lost and n.away_since_s is None]
        if not there:
            return f"no agent is there that could look into {run.options.checkpoint_dir}"
        if run.asked_s is None:
            run.asked_s = now_s
            run.relay.order(there[0], FindCheckpoints(run.options.checkpoint_dir, run.job_id))
        if now_s - run.asked_s > FIND_S:
            return f"{run.options.checkpoint_dir} could not be looked through within {FIND_S:.0f} s"
        return None

    def _look_after_gathering(self, run: JobRun, now_s: float) -> None:
        own = [p for p in self._ledger.pods_of(run.key) if not p.is_spare]
        if own:
            run.began_s = now_s
        elif now_s - run.began_s > REMOVED_S:
            run.relay.end(EXIT_REMOVED, "all pods of the job were deleted while it was to begin again: so was the job")


def _restart(run: JobRun, rung: Rung) -> RestartPlan:
    launch = {rank: dict(env) for rank, env in run.core.job.launch.items()}
    launch = launch or ({rank: dict(env) for rank, env in run.restart.launch.items()} if run.restart else {})
    if rung.ours:
        return RestartPlan(launch, directory=rung.checkpoint, step=rung.step)
    return RestartPlan(launch, checkpoint=rung.checkpoint, aside=rung.aside, step=rung.step)
