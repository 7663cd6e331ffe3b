"""Which running job a command means; where none is meant, what became of the one that is looked for."""

from __future__ import annotations

import os
from pathlib import Path

from torchrelay.cli.folders import folder
from torchrelay.cli.folders.history import KeptRun, history_folder, kept_runs
from torchrelay.protocol.errors import UserError


def meant_job(state: Path, wanted: str | None) -> folder.KnownRun:
    """Return the wanted job, by its id or name. Raises UserError if none runs that is meant, or more than one."""
    try:
        return folder.choose_run(state, wanted)
    except folder.NotRunningError as e:
        over = newest_that_is_over(wanted)
        if (
            over is None
            and wanted is not None
            and not folder.running_jobs(state)
            and kept_runs(history_folder(os.environ))
        ):
            raise UserError(
                f"no job of this user runs on this machine, and none of the id or name {wanted} is kept\n"
                "hint: torchrelay history"
            ) from e
        if over is None:
            raise
        run_id = over.head.run_id
        named = f"{run_id} ({over.head.name})"
        end = _end_of(over)
        if wanted is None:
            raise UserError(
                f"no job of this user runs on this machine (looked in {state}); "
                f"the latest, {named}, is over: {end}\nhint: torchrelay report {run_id}"
            ) from e
        raise UserError(f"job {named} is over: {end}\nhint: torchrelay report {run_id}") from e


def newest_that_is_over(wanted: str | None) -> KeptRun | None:
    """Return the newest run that is kept and over: of the wanted id or name, or of all. None if there is none."""
    runs = kept_runs(history_folder(os.environ))
    return next((r for r in runs if not r.head.is_running and (wanted is None or r.is_called(wanted))), None)


def _end_of(run: KeptRun) -> str:
    try:
        return run.end(run.record())[1]
    except UserError as e:
        return str(e)
