"""The record of a run, whether it still runs or is over."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing

from torchrelay.cli.controller_client.reach import controller_of
from torchrelay.cli.folders import folder
from torchrelay.cli.folders.history import KEEP, NOT_KEPT, choose_kept, history_folder, kept_record, kept_runs
from torchrelay.dashboard.record import RunRecord
from torchrelay.protocol.errors import FatalError, FrameError, UserError
from torchrelay.protocol.events import from_job_event


async def find_record(environment: Mapping[str, str], wanted: str | None) -> RunRecord:
    """Return the record of the running job or the kept run `wanted` (id or name); of the newest one if nothing is named.

    Raises UserError if there is none, or several run and none is named.
    """
    state = folder.state_folder(environment)
    history = history_folder(environment)
    running = folder.one_of_each(state)
    if wanted is None and not running:
        runs = kept_runs(history)
        if not runs:
            if history is None:
                raise UserError(f"nothing runs here, and {NOT_KEPT}\n{KEEP}")
            raise UserError(f"nothing runs here, and no run is kept in {history}\nhint: torchrelay run --help")
        return runs[0].record()
    named = {run.run_id for run in folder.running_jobs(state) if run.name == wanted}
    if wanted is not None and wanted not in {run.run_id for run in running} | named | {run.name for run in running}:
        return choose_kept(history, wanted).record()
    record = RunRecord()
    try:
        async with (
            controller_of(state, wanted) as (run, control),
            aclosing(control.watch(without_progress=False, follow=False)) as stream,
        ):
            record = kept_record(history, run.run_id) or record  # which has each step, as a controller has not
            known_s = record.newest_s
            async for packed in stream:
                if packed.time_s <= known_s:
                    continue
                try:
                    record.take(from_job_event(packed), packed.time_s)
                except FrameError:  # of a newer controller
                    continue
    except FatalError:
        if wanted is None:
            raise
        return choose_kept(history, wanted).record()
    return record
