"""Whoever is asked about a run says the same: metrics, the command's summary, history, report and dashboard."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import told_runs as t

from torchrelay.cli.display.summary import RunSummary, fold
from torchrelay.cli.folders.history import kept_runs
from torchrelay.cli.folders.kept_run import RunHead, RunWriter
from torchrelay.cli.history.cost import Assumed, cost_report
from torchrelay.cli.history.listing import line_of
from torchrelay.controller.metrics.tally import JobTally, Totals
from torchrelay.dashboard import view
from torchrelay.protocol import events as e

END_S = t.BEGAN_S + 200
FALLS: list[t.Told] = [
    *t.begins(),
    *t.progress(20, 60.7, 0, 3.0),
    *t.kill(60.8),
    *t.progress(62.5, 100, 121, 3.0),
    (t.BEGAN_S + 100.2, e.JobFell(1, 75, "no spare", 233, False, "/jit/a", 230, "")),
    (t.BEGAN_S + 100.3, e.JobFinished(75, "no spare")),
    (t.BEGAN_S + 101, e.JobRestarted(1, "jit-checkpoint", "/jit/a", 230, 3, "no spare", ())),
    (t.BEGAN_S + 110, t.begins()[0][1]),
    (t.BEGAN_S + 120, e.RestartDone(1, 19.8)),
    *t.progress(120.2, 199.9, 230, 3.0),
]
RUNS = {"migrations": [*t.small_run(), *t.progress(140.1, 199.9, 347, 3.0)], "restart": FALLS}


@pytest.mark.parametrize("run", RUNS)
def test_all_commands_tell_the_same_figures_of_a_run(run: str, tmp_path: Path) -> None:
    told = [*RUNS[run], (END_S, e.JobFinished(0, "all ranks are done"))]
    summary, tally = RunSummary(), JobTally(Totals())
    writer = RunWriter(tmp_path, RunHead("ab", "x", "m", "/", ("run",), t.BEGAN_S, None), pytest.fail)
    for time_s, event in told:
        summary = fold(summary, event, time_s)
        writer.take(e.to_job_event(event, time_s))
        tally.hear(e.to_job_event(event, time_s)) if run != "restart" else tally.account.take(event, time_s)
    writer.close()
    record = t.record_of(told)
    line = line_of(kept_runs(tmp_path)[0], END_S + 1000)
    cost = cost_report(record, END_S + 1000, Assumed(1800.0, 300.0))
    card = view.card(view.Seen(record, END_S))

    goodput = tally.account.goodput(END_S)
    assert 0.5 < goodput < 0.99
    assert cost.goodput == goodput
    assert line.goodput == pytest.approx(goodput, abs=1 / 200)  # progress is kept once a second
    assert card["goodput"] == f"{int(goodput * 1000) / 10:.1f} %"

    assert summary.boundary == record.boundary == line.steps == cost.steps == card["steps"]
    assert len(summary.committed) == line.migrations_done == cost.losses_survived + cost.moves_done
    assert [m.migration for m in summary.moves] == list(record.migrations)
    assert sum(summary.downtime_s.values()) == pytest.approx(record.totals.standstill_s)
    assert [(r.steps, r.down_s) for r in summary.restarts] == [(r.event.steps, r.down_s) for r in record.restarts]
    assert (line.exit_code, summary.exit_code) == (0, 0)
    spent = record.useful_time(END_S)
    assert spent.wall_s == summary.ended_s - summary.started_s == line.lasted_s == cost.wall_s
    assert spent.restart_s == pytest.approx(summary.down_s_of_restarts)
