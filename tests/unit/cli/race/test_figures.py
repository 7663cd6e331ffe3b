import pytest

from torchrelay.cli.race.figures import fold
from torchrelay.cli.race.step_log import RankLog, Step


def log(*steps: tuple[int | None, float], process: int = 1) -> RankLog:
    return RankLog([Step(process, number, unix_s) for number, unix_s in steps], "digest")


def steady(first: int, last: int, start_s: float, step_s: float = 1.0) -> list[tuple[int | None, float]]:
    return [(number, start_s + step_s * (number - first)) for number in range(first, last + 1)]


def test_an_undisturbed_run_loses_nothing() -> None:
    found = fold([log(*steady(1, 61, 100.0)), log(*steady(1, 61, 100.0))], [])

    assert found is not None
    assert (found.steps, found.training_s, found.step_s) == (61, 60.0, 1.0)
    assert found.effective_steps_per_min == pytest.approx(60.0)
    assert (found.steps_redone, found.rank_steps_missed, found.downtime_s, found.wasted_rank_s) == (0, 0, 0.0, 0.0)


def test_a_standstill_costs_what_it_took_beyond_a_step() -> None:
    ranks = [log(*steady(1, 10, 0.0), *steady(11, 20, 14.0)) for _ in range(2)]

    found = fold(ranks, [9.5])

    assert found is not None
    assert [(c.stall_s, c.redo_s) for c in found.costs] == [(4.0, 0.0)]
    assert found.wasted_rank_s == pytest.approx(8.0)


def test_steps_that_are_done_again_are_told_from_standing_still() -> None:
    """Step 10 at 9 s, a restart until 14 s at step 7, step 11 at 18 s."""
    ranks = [log(*steady(1, 10, 0.0), *steady(7, 20, 14.0)) for _ in range(2)]

    found = fold(ranks, [9.5])

    assert found is not None
    assert found.steps_redone == 4
    assert [(c.stall_s, c.redo_s) for c in found.costs] == [(4.0, 4.0)]
    assert found.downtime_s == 8.0


def test_steps_that_others_did_without_a_rank_count_in_part() -> None:
    found = fold([log(*steady(1, 21, 0.0)), log(*steady(1, 10, 0.0), *steady(16, 21, 15.0))], [9.5])

    assert found is not None
    assert found.rank_steps_missed == 5
    assert found.downtime_s == 0.0
    assert found.effective_steps_per_min == pytest.approx(60 * 17.5 / 20)
    assert found.wasted_rank_s == pytest.approx(5.0)


def test_each_fault_has_its_own_cost() -> None:
    ranks = [log(*steady(1, 5, 0.0), *steady(6, 10, 7.0), *steady(11, 15, 16.0))]

    found = fold(ranks, [4.5, 12.0])

    assert found is not None
    assert [c.downtime_s for c in found.costs] == [2.0, 4.0]


def test_without_numbers_nothing_is_said_of_steps_done_again() -> None:
    found = fold([log((None, 1.0), (None, 2.0), (None, 3.0))], [])

    assert found is not None
    assert (found.steps, found.steps_redone) == (3, None)


def test_a_run_without_two_steps_has_no_figures() -> None:
    assert fold([log(), log()], []) is None
    assert fold([log((1, 5.0)), log((1, 5.1))], []) is None
