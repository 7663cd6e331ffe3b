"""What the agent of a machine knows of its processes."""

from __future__ import annotations

from torchrelay.agent.processes.known import KnownProcesses
from torchrelay.protocol.names import NO_RANK, WorkerId

RANK, SPARE = WorkerId("n0.w0"), WorkerId("n0.s0")


def of_a_rank_and_a_spare() -> KnownProcesses:
    known = KnownProcesses()
    known.begins(RANK, 3)
    known.begins(SPARE, NO_RANK)
    return known


def test_a_rank_is_in_force_from_the_start_and_a_spare_is_not() -> None:
    standings = of_a_rank_and_a_spare().standings()
    assert (standings[RANK].in_force, standings[SPARE].in_force) == (0, -1)


def test_a_rank_was_here_also_once_its_process_is_forgotten() -> None:
    known = of_a_rank_and_a_spare()
    known.takes_rank(SPARE, 5)
    known.forget(RANK)
    known.forget(SPARE)
    assert [rank for rank in range(7) if known.was_here(rank)] == [3, 5]
    assert RANK not in known


def test_who_was_told_that_it_may_end_is_not_told_again() -> None:
    known = of_a_rank_and_a_spare()
    known[RANK].finishing = True
    assert known.finishing() == {RANK}
    known[RANK].excused = True
    assert known.finishing() == set()


def test_a_process_is_found_by_what_it_says_that_it_is() -> None:
    known = of_a_rank_and_a_spare()
    assert known.said_pid(RANK) is None
    known[RANK].pid = 70
    assert (known.said_pid(RANK), known.with_pid(70), known.with_pid(71)) == (70, RANK, None)
