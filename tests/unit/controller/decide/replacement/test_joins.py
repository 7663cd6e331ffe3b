from __future__ import annotations

from torchrelay.controller.decide.replacement.joins import JoinFailure, barred_nodes, first_reason, futile
from torchrelay.protocol.messages import Rehearsed
from torchrelay.protocol.names import REHEARSAL_DIFFERS, REHEARSAL_FAILED, REHEARSAL_SAME

OOM = "OutOfMemoryError: 812 MiB at 0x7f31"
N0 = {"n0"}


def test_nothing_speaks_against_the_first_spare() -> None:
    assert futile(1, [], N0) == ""


def test_an_error_of_the_script_or_the_journal_would_come_again() -> None:
    failures = [JoinFailure(1, "n0.s0", "n0", "ImportError: no module named fast_attention", lasting=True)]
    assert futile(1, failures, N0) == (
        "n0.s0 could not become rank 1, and no other process could: ImportError: no module named fast_attention"
    )
    assert futile(0, failures, N0) == ""


def test_the_same_error_twice_is_no_accident_whatever_its_numbers() -> None:
    once = [JoinFailure(1, "n0.s0", "n0", OOM), JoinFailure(0, "n0.s1", "n0", OOM)]
    assert futile(1, once, N0) == ""
    twice = [*once, JoinFailure(1, "n0.s2", "n0", "OutOfMemoryError: 799 MiB at 0x7fff")]
    assert futile(1, twice, N0) == f"n0.s0, n0.s2 could not become rank 1, all for the same reason: {OOM}"


def test_two_errors_that_differ_may_both_be_accidents() -> None:
    assert (
        futile(1, [JoinFailure(1, "n0.s0", "n0", OOM), JoinFailure(1, "n0.s1", "n0", "TimeoutError: no answer")], N0)
        == ""
    )


def test_a_rehearsal_that_failed_saves_the_first_spare_too() -> None:
    for outcome in (REHEARSAL_FAILED, REHEARSAL_DIFFERS):
        why = futile(1, [], N0, Rehearsed(3, 1, 40, outcome, "best was 0.3 and is 0.4"))
        assert why == "a rehearsal at step 40 has shown that no process could become rank 1: best was 0.3 and is 0.4"
    assert futile(1, [], N0, Rehearsed(3, 1, 40, REHEARSAL_SAME, "")) == ""


def test_the_first_reason_is_told_where_all_spares_are_gone() -> None:
    failures = [JoinFailure(1, "n0.s0", "n0", OOM), JoinFailure(1, "n0.s1", "n0", "TimeoutError: no answer")]
    assert first_reason(1, failures) == f"; the first one, n0.s0, could not do it: {OOM}"
    assert first_reason(0, failures) == ""


def test_processes_that_are_ended_from_outside_say_nothing_of_the_next_one() -> None:
    killed = [JoinFailure(1, worker, "n0", "it was killed by SIGKILL", by_chance=True) for worker in ("n0.s0", "n0.s1")]
    assert futile(1, killed, N0) == ""
    assert first_reason(1, killed) == "; the first one, n0.s0, could not do it: it was killed by SIGKILL"


def test_those_that_fail_alike_on_one_node_say_nothing_of_another_one() -> None:
    bus = "it was killed by SIGBUS"
    here = [JoinFailure(1, "n0.s0", "n0", bus), JoinFailure(1, "n0.s1", "n0", bus)]
    assert futile(1, here, {"n0", "n1"}) == ""
    assert barred_nodes(1, here) == {"n0"}
    assert futile(1, here, N0) == futile(1, here, ()) != ""
    there = [*here, JoinFailure(1, "n1.s0", "n1", bus)]
    assert futile(1, there, {"n0", "n1", "n2"}).startswith("n0.s0, n0.s1, n1.s0 could not become rank 1")
    assert barred_nodes(1, there) == barred_nodes(0, here) == barred_nodes(1, here[:1]) == set()
