from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from torchrelay.cli.display.summary import MigrationSummary, RunSummary
from torchrelay.cli.relay_score.entries import CorpusEntry
from torchrelay.cli.struck_runs.cells import PHASES, RUNGS, Cell, all_cells
from torchrelay.cli.struck_runs.classify import IDENTICAL, Ran
from torchrelay.cli.struck_runs.together import APART_STEPS, in_runs, speaks_for_each, stopped_at

ONE = CorpusEntry("one", "loops", "one.py", 18, ranks=3, epoch_step=7, phases=PHASES, places=("saving",))
TWO = CorpusEntry("two", "loops", "two.py", 15, phases=PHASES)
EARLY, LATE = Cell("two", "gate", "kill", 0, 4), Cell("two", "forward", "stop", 1, 9)
FIRST = MigrationSummary("m1", "unplanned", (0,), outcome="committed", steps_redone=1)
SECOND = MigrationSummary("m2", "unplanned", (1,), outcome="committed", steps_redone=0)
BOTH = Ran(0, RunSummary(faults_injected=(LATE.fault, EARLY.fault), migrations=(FIRST, SECOND)), (), (), True)


def test_every_cell_is_in_one_run_with_others_of_its_entry_that_strike_in_other_steps() -> None:
    cells = all_cells([ONE, TWO], 0, (), (), ())
    runs = in_runs(cells, 6)
    assert sorted(c.name for run in runs for c in run) == sorted(c.name for c in cells)
    assert max(len(run) for run in runs) == 6
    for run in runs:
        assert len({c.entry for c in run}) == 1
        steps = [c.step for c in run]
        assert all(b - a >= APART_STEPS for a, b in itertools.pairwise(steps))
    assert len(runs) < len(cells) / 2


def test_planned_moves_places_of_the_program_and_what_needs_its_own_options_have_a_run_to_themselves() -> None:
    runs = in_runs(all_cells([ONE], 0, (), (), ()), 6)
    alone = [run for run in runs if any(c.kind == "planned" or c.kind in RUNGS or c.in_place for c in run)]
    assert len(alone) == 12 + 9
    assert all(len(run) == 1 for run in alone)


def test_one_cell_a_run_keeps_their_order() -> None:
    cells = all_cells([ONE, TWO], 0, (), (), ())
    assert in_runs(cells, 1) == [[c] for c in cells]


def test_a_run_in_which_all_was_seen_speaks_for_each_cell() -> None:
    verdicts = speaks_for_each([EARLY, LATE], BOTH)
    assert verdicts is not None
    assert [(v.outcome, v.steps_redone) for v in verdicts] == [(IDENTICAL, 1), (IDENTICAL, 0)]
    assert verdicts[0].reason == "unplanned of rank 0 in 0.00 s, 1 done again; 2 cells in one run"


@pytest.mark.parametrize(
    "ran",
    [
        replace(BOTH, exit_code=76),
        replace(BOTH, exit_code=None),
        replace(BOTH, differences=("rank 1: model differs",)),
        replace(BOTH, summary=replace(BOTH.summary, faults_injected=(EARLY.fault,))),
        replace(BOTH, summary=replace(BOTH.summary, faults_injected=(EARLY.fault, EARLY.fault))),
        replace(BOTH, summary=replace(BOTH.summary, migrations=(FIRST,))),
        replace(BOTH, summary=replace(BOTH.summary, migrations=(SECOND, FIRST))),
        replace(BOTH, summary=replace(BOTH.summary, migrations=(replace(FIRST, steps_redone=2), SECOND))),
        replace(BOTH, summary=replace(BOTH.summary, migrations=(FIRST, replace(SECOND, outcome="abandoned")))),
    ],
)
def test_a_run_in_which_anything_is_amiss_speaks_for_none(ran: Ran) -> None:
    assert speaks_for_each([EARLY, LATE], ran) is None


@pytest.mark.parametrize(("migrations", "cell"), [((), EARLY), ((FIRST,), LATE), ((FIRST, SECOND), LATE)])
def test_a_run_stops_at_the_first_cell_that_nobody_was_replaced_for(
    migrations: tuple[MigrationSummary, ...], cell: Cell
) -> None:
    assert stopped_at([EARLY, LATE], replace(BOTH, summary=replace(BOTH.summary, migrations=migrations))) is cell


def test_of_two_ranks_that_do_not_reach_each_other_either_may_have_been_replaced() -> None:
    cut = replace(EARLY, kind="partition")
    ran = replace(
        BOTH, summary=replace(BOTH.summary, faults_injected=(cut.fault, LATE.fault), migrations=(SECOND, SECOND))
    )
    assert speaks_for_each([cut, LATE], ran) is not None
    assert speaks_for_each([LATE, cut], replace(ran, summary=replace(ran.summary, migrations=(FIRST, FIRST)))) is None
