from collections import Counter

import pytest

from torchrelay.cli.race.faults import EARLIEST, LATEST, RaceFault, RaceFaultKind, draw

KINDS = (RaceFaultKind.KILL, RaceFaultKind.STOP, RaceFaultKind.PLANNED)


def test_the_same_seed_draws_the_same_faults() -> None:
    assert draw(7, 9, 4, KINDS) == draw(7, 9, 4, KINDS)
    assert draw(7, 9, 4, KINDS) != draw(8, 9, 4, KINDS)


def test_faults_come_in_the_order_of_their_times_and_within_the_training() -> None:
    times = [fault.at for fault in draw(3, 50, 2, KINDS)]

    assert times == sorted(times)
    assert all(EARLIEST <= at <= LATEST for at in times)


def test_each_kind_comes_as_often_as_the_others() -> None:
    assert Counter(fault.kind for fault in draw(1, 9, 2, KINDS)) == dict.fromkeys(KINDS, 3)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
def test_a_lost_node_is_half_of_the_ranks_side_by_side(ranks: int) -> None:
    drawn = draw(5, 40, ranks, (RaceFaultKind.NODE,))

    assert {len(fault.ranks) for fault in drawn} == {ranks // 2}
    assert all(fault.ranks == tuple(range(fault.ranks[0], fault.ranks[-1] + 1)) for fault in drawn)
    assert all(fault.ranks[-1] < ranks for fault in drawn)


def test_every_rank_can_be_struck() -> None:
    assert {fault.ranks for fault in draw(2, 60, 3, (RaceFaultKind.KILL,))} == {(0,), (1,), (2,)}


def test_a_fault_has_a_name_in_words() -> None:
    assert RaceFault(RaceFaultKind.NODE, (2, 3), 0.5).name == "node of ranks 2, 3"
    assert RaceFault(RaceFaultKind.KILL, (1,), 0.5).name == "kill of rank 1"
