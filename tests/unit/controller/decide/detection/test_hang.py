from __future__ import annotations

import dataclasses

import pytest

from torchrelay.controller.config import Policy
from torchrelay.controller.decide.detection.hang import Vital, find_culprit
from torchrelay.protocol.messages import LinkState

STEP_S = 1.0
POLICY = Policy()
LIMIT_S = 3 * STEP_S + POLICY.hang_extra_s


def waits(rank: int, silent_s: float, **changes: object) -> Vital:
    vital = Vital(rank, 5, 5, "body", True, "S", silent_s, silent_s, 0.1)
    return dataclasses.replace(vital, **changes)  # type: ignore[arg-type]  # of any of its fields


def works(rank: int, silent_s: float, **changes: object) -> Vital:
    return waits(rank, silent_s, **{"waiting": False, **changes})


def culprit_of(*vitals: Vital) -> int | None:
    found = find_culprit(vitals, STEP_S, POLICY)
    return None if found is None else found.rank


def test_who_does_not_wait_and_does_nothing_while_peers_wait_is_the_culprit() -> None:
    assert culprit_of(waits(0, LIMIT_S), works(1, LIMIT_S + 1), waits(2, LIMIT_S)) == 1


@pytest.mark.parametrize(
    "vitals",
    [
        (waits(0, LIMIT_S - 0.1), works(1, LIMIT_S + 1)),  # peers have not waited long enough
        (waits(0, LIMIT_S + 60), works(1, 0.2)),  # rank 1 evaluates: its loop moves
        (works(0, LIMIT_S + 60), works(1, LIMIT_S + 60)),  # nobody waits: a slow step
        (waits(0, LIMIT_S + 60), waits(1, LIMIT_S + 60)),  # all wait: nobody is to blame
        (waits(0, LIMIT_S + 60), works(1, LIMIT_S + 60, idle_s=0.3)),  # rank 1 computes, if without a sign of a loop
        (waits(0, LIMIT_S + 20), works(1, LIMIT_S + 20, phase="after")),  # slow storage, saving, uploading
        (waits(0, LIMIT_S + 60), works(1, LIMIT_S + 60, phase="finished")),
        (waits(0, LIMIT_S + 60), works(1, LIMIT_S + 60, phase="set-up")),
        (waits(0, LIMIT_S + 60), works(1, LIMIT_S + 60, phase="standing")),
        (waits(0, LIMIT_S + 60), works(1, LIMIT_S + 60, news_age_s=4.0)),  # its agent is silent: no news is no news
        (waits(0, LIMIT_S + 60, news_age_s=4.0), works(1, LIMIT_S + 60)),
    ],
)
def test_ranks_that_do_their_work_are_not_suspected(vitals: tuple[Vital, ...]) -> None:
    assert culprit_of(*vitals) is None


def test_storage_that_stays_away_is_a_hang_in_the_end() -> None:
    assert culprit_of(waits(0, 61), works(1, 61, phase="after")) == 1


def test_a_rank_that_only_burns_processor_time_is_given_up_in_the_end() -> None:
    silent_s = POLICY.busy_hang_s + 1
    assert culprit_of(waits(0, silent_s), works(1, silent_s, idle_s=0.1)) == 1


def test_a_stopped_process_is_found_at_once_if_peers_wait() -> None:
    stopped = works(1, 1.1, process_state="T", stopped_s=POLICY.stopped_s)
    assert culprit_of(waits(0, 0.3), stopped) == 1
    assert culprit_of(works(0, 0.3), stopped) is None
    assert culprit_of(waits(0, 0.3), dataclasses.replace(stopped, stopped_s=POLICY.stopped_s - 0.1)) is None


@pytest.mark.parametrize(("state", "words"), [("Z", "is dead"), ("gone", "is gone")])
def test_a_process_that_is_dead_behind_a_command_that_lives_is_found_like_a_stopped_one(state: str, words: str) -> None:
    vitals = [waits(0, 1.0), waits(1, 1.5, process_state=state, stopped_s=1.5)]
    culprit = find_culprit(vitals, 0.1, Policy())
    assert culprit is not None
    assert (culprit.rank, words in culprit.reason) == (1, True), culprit.reason


def test_a_stopped_process_is_found_where_nobody_says_that_it_waits_but_all_stand_still() -> None:
    stopped = works(1, LIMIT_S + 1, process_state="T", stopped_s=LIMIT_S + 1)
    found = find_culprit([works(0, LIMIT_S), stopped], STEP_S, POLICY)
    assert found is not None
    assert found.rank == 1
    assert "while rank 0 is at a standstill" in found.reason
    assert culprit_of(works(0, LIMIT_S), stopped, works(2, LIMIT_S, idle_s=0.3)) is None, "rank 2 computes"
    assert culprit_of(works(0, LIMIT_S), stopped, works(2, LIMIT_S - 0.1)) is None
    assert culprit_of(works(0, LIMIT_S, news_age_s=9.0), stopped) is None


def test_a_job_that_is_stopped_as_a_whole_is_left_alone() -> None:
    assert culprit_of(*(works(r, 99, process_state="T", stopped_s=99) for r in range(3))) is None


def test_peers_that_are_done_wait_for_a_stopped_one_as_well() -> None:
    stopped = works(1, 1.1, process_state="T", stopped_s=1.1, phase="after")
    assert culprit_of(works(0, 0.3, phase="finished"), stopped) == 1


def test_a_process_stopped_inside_a_collective_is_found_too() -> None:
    assert culprit_of(waits(0, 1.0), waits(1, 1.5, process_state="T", stopped_s=1.5)) == 1


def test_of_several_the_one_that_is_furthest_behind_is_blamed() -> None:
    behind = works(2, LIMIT_S + 1, boundary=4, gates_passed=4)
    assert culprit_of(waits(0, LIMIT_S), works(1, LIMIT_S + 2), behind) == 2
    assert culprit_of(waits(0, LIMIT_S), works(1, LIMIT_S + 1), works(2, LIMIT_S + 2)) == 2


def test_the_reason_names_numbers_and_witnesses() -> None:
    found = find_culprit([waits(0, 9.0), works(1, 9.5), waits(2, 9.0)], STEP_S, POLICY)
    assert found is not None
    assert found.reason == (
        "rank 1 has shown no progress for 9.5 s (a step takes 1.00 s, the limit is 7.0 s) while ranks 0, 2 wait"
    )
    assert "rank 2: 5 steps done, body, waiting, state S, silent for 9.0 s" in found.evidence


def test_code_that_runs_in_circles_is_a_hang_wherever_it_is() -> None:
    for phase, waiting in (("body", False), ("after", False), ("body", True)):
        circling = works(1, LIMIT_S + 1, phase=phase, waiting=waiting, idle_s=0.1, process_state="R", motion="circling")
        assert culprit_of(waits(0, LIMIT_S), circling) == 1
        assert culprit_of(waits(0, LIMIT_S), dataclasses.replace(circling, motion="moving")) is None
        assert culprit_of(waits(0, LIMIT_S), dataclasses.replace(circling, motion="still")) is None
        assert culprit_of(waits(0, LIMIT_S), dataclasses.replace(circling, silent_s=LIMIT_S - 1)) is None
        # Agents speak once in seconds: it computed when they did.
        assert culprit_of(waits(0, LIMIT_S), dataclasses.replace(circling, idle_s=1.7, news_age_s=1.6)) == 1
        assert culprit_of(waits(0, LIMIT_S), dataclasses.replace(circling, idle_s=1.7, news_age_s=0.3)) is None


def test_before_the_first_step_a_rank_may_do_something_for_all_at_length() -> None:
    """Rank 0 alone writes a configuration, or reads an index, in a loop of set-up, and others wait for it in a collective."""
    none = {"boundary": 0, "gates_passed": 0}
    for busy in ({"motion": "circling", "idle_s": 0.1, "process_state": "R"}, {}):
        assert culprit_of(waits(1, 50.0, **none), works(0, 50.0, **none, **busy)) is None
        assert culprit_of(waits(1, 700.0, **none), works(0, 700.0, **none, **busy)) == 0
    locked = works(0, ASLEEP_S, **none, asleep=True, locked=True)
    assert culprit_of(waits(1, ASLEEP_S, **none), locked) == 0


def test_who_polls_and_sleeps_may_wait_for_an_upload() -> None:
    polling = works(1, LIMIT_S + 20, phase="after", motion="circling")
    assert culprit_of(waits(0, LIMIT_S), polling) is None


ASLEEP_S = 3 * STEP_S + POLICY.hang_asleep_s


@pytest.mark.parametrize("phase", ["body", "after"])
def test_a_rank_that_nothing_but_itself_could_wake_is_found_within_two_seconds_after_three_steps(phase: str) -> None:
    asleep = works(1, ASLEEP_S, asleep=True, locked=True, phase=phase)
    assert culprit_of(waits(0, ASLEEP_S), asleep) == 1
    assert culprit_of(waits(0, ASLEEP_S), dataclasses.replace(asleep, silent_s=ASLEEP_S - 0.1)) is None
    assert culprit_of(waits(0, ASLEEP_S - 0.1), asleep) is None, "nobody has waited for it as long"
    assert culprit_of(waits(0, ASLEEP_S), dataclasses.replace(asleep, idle_s=0.5)) is None, "it computed since"
    assert culprit_of(waits(0, ASLEEP_S), dataclasses.replace(asleep, waiting=True)) is None, "it waits for peers"
    assert ASLEEP_S < 3 * STEP_S + 2.0


def test_a_rank_whose_wait_may_end_by_itself_has_more_time() -> None:
    asleep = works(1, LIMIT_S - 0.1, asleep=True)
    assert culprit_of(waits(0, LIMIT_S), asleep) is None
    assert culprit_of(waits(0, LIMIT_S), dataclasses.replace(asleep, silent_s=LIMIT_S, idle_s=LIMIT_S)) == 1


def test_who_has_computed_for_long_before_it_waits_for_a_service_or_storage_has_all_of_that_time() -> None:
    for what in ({"may_be_woken": True}, {"phase": "after"}):
        assert culprit_of(waits(0, 61), works(1, 61, idle_s=5.0, **what)) is None
        assert culprit_of(waits(0, 121), works(1, 121, idle_s=61.0, **what)) == 1


def test_a_rank_that_a_service_may_wake_has_as_much_time_as_storage() -> None:
    asks = works(1, LIMIT_S + 20, may_be_woken=True)
    assert culprit_of(waits(0, LIMIT_S + 20), asks) is None
    late = dataclasses.replace(asks, silent_s=POLICY.slack_hang_s, idle_s=POLICY.slack_hang_s)
    assert culprit_of(waits(0, POLICY.slack_hang_s), late) == 1


def test_a_loader_that_waits_for_itself_gets_no_slack() -> None:
    loading = works(1, LIMIT_S + 1, phase="after")
    assert culprit_of(waits(0, LIMIT_S), dataclasses.replace(loading, asleep=True)) == 1
    assert culprit_of(waits(0, LIMIT_S), loading) is None


def test_of_all_that_wait_the_odd_one_out_is_the_culprit() -> None:
    at_gate = [waits(rank, LIMIT_S + 1, phase="gate") for rank in (0, 1)]
    assert culprit_of(*at_gate, waits(2, LIMIT_S + 1)) == 2
    in_body = [waits(rank, LIMIT_S + 1) for rank in (0, 1)]
    assert culprit_of(*in_body, waits(2, LIMIT_S + 1, phase="gate")) == 2
    assert culprit_of(waits(0, LIMIT_S + 1, phase="gate"), waits(1, LIMIT_S + 1)) == 1
    calls = {rank: ("all_reduce (a.py:3)",) if rank == 1 else ("backward (a.py:9)",) for rank in range(3)}
    assert culprit_of(*(waits(rank, LIMIT_S + 1, stack=calls[rank]) for rank in range(3))) == 1


@pytest.mark.parametrize("stuck", [0, 1])
@pytest.mark.parametrize("others_longer_s", [-1.0, 0.0, 1.0])
def test_who_waits_for_its_peer_is_not_blamed_while_that_one_stands_in_code_of_its_own(
    stuck: int, others_longer_s: float
) -> None:
    """Both count as waiting, since both are in a backward: neither its number nor who was silent first says which one hangs."""
    hook = waits(stuck, LIMIT_S + 1, in_own_code=True, motion="still", stack=("hook (train.py:3)",))
    peer = waits(1 - stuck, LIMIT_S + 1 + others_longer_s, stack=("backward (graph.py:9)",))
    found = find_culprit(sorted([hook, peer], key=lambda v: v.rank), STEP_S, POLICY)
    assert found is not None
    assert found.rank == stuck
    assert f"while rank {1 - stuck} waits" in found.reason
    assert f"rank {stuck}: 5 steps done, body, state S" in found.evidence, "it is not told as waiting"


@pytest.mark.parametrize("stuck", [0, 1])
@pytest.mark.parametrize("others_longer_s", [-1.0, 0.0, 1.0])
def test_of_those_that_wait_the_one_whose_c_code_keeps_the_interpreter_s_lock_is_blamed(
    stuck: int, others_longer_s: float
) -> None:
    locked = waits(stuck, LIMIT_S + 2, keeps_lock=True, links=None)
    peer = waits(1 - stuck, LIMIT_S + 2 + others_longer_s, stack=("backward (graph.py:9)",))
    found = find_culprit(sorted([locked, peer], key=lambda v: v.rank), STEP_S, POLICY)
    assert found is not None
    assert (found.rank, found.cut_off) == (stuck, False)
    assert f"C code that keeps the interpreter's lock while rank {1 - stuck} waits" in found.reason


def test_where_all_keep_that_lock_or_somebody_computes_nobody_is_blamed_for_it() -> None:
    locked = [waits(rank, LIMIT_S + 1, keeps_lock=True) for rank in (0, 1)]
    assert culprit_of(*locked) is None
    assert culprit_of(locked[0], waits(1, LIMIT_S + 1, idle_s=0.2)) is None


def test_code_of_its_own_in_a_backward_is_no_hang_as_long_as_it_works_or_nobody_waits() -> None:
    hook = waits(1, LIMIT_S + 1, in_own_code=True, motion="still")
    assert culprit_of(waits(0, LIMIT_S + 1), dataclasses.replace(hook, idle_s=0.3)) is None
    assert culprit_of(waits(0, LIMIT_S - 1), hook) is None
    assert culprit_of(dataclasses.replace(hook, rank=0), hook) is None, "who hangs where all do cannot be told"


@pytest.mark.parametrize(
    "vitals",
    [
        (waits(0, LIMIT_S + 1, phase="gate"), waits(1, LIMIT_S - 1)),  # one of them has just come
        (waits(0, LIMIT_S + 1, phase="gate"), waits(1, LIMIT_S + 1, idle_s=0.2)),  # a long backward
        (waits(0, LIMIT_S + 1, phase="gate"), waits(1, LIMIT_S + 1, news_age_s=4.0)),  # of one nothing is known
        (waits(0, LIMIT_S + 1, phase="gate"), waits(1, LIMIT_S + 1), works(2, 0.1, phase="after")),  # one works
        (waits(0, LIMIT_S + 60, phase="after", stack=("a",)), waits(1, LIMIT_S + 60, phase="after", stack=("b",))),
        (waits(0, LIMIT_S + 60, stack=("a",)), waits(1, LIMIT_S + 60, stack=("a",))),  # a slow transfer
    ],
)
def test_all_may_wait_for_good_reasons(vitals: tuple[Vital, ...]) -> None:
    assert culprit_of(*vitals) is None


def test_the_culprit_is_named_with_the_line_of_the_user() -> None:
    stack = (
        "step (/venv/lib/python3.11/site-packages/torch/optim/sgd.py:5)",
        "main (/home/me/train.py:12): opt.step()",
    )
    found = find_culprit([waits(0, LIMIT_S), works(1, LIMIT_S + 1, stack=stack)], STEP_S, POLICY)
    assert found is not None
    assert found.stack == stack
    assert found.reason.endswith("it is in main (/home/me/train.py:12): opt.step()")


def linked(vitals: list[Vital], cut: int, unanswered_s: float = 6.0, probed_s: float = 3.0) -> list[Vital]:
    """A connection between any two; those of rank `cut` are not answered."""
    seen: dict[int, list[LinkState]] = {v.rank: [] for v in vitals}
    for a in seen:
        for b in seen:
            if a != b:
                dead_s = unanswered_s if cut in (a, b) else 0.0
                seen[a].append(LinkState(f"h{a}:{b}", f"h{b}:{a}", dead_s, probed_s, dead_s or 0.9))
    return [dataclasses.replace(v, links=tuple(seen[v.rank])) for v in vitals]


LET_THROUGH = [
    waits(0, LIMIT_S + 1, phase="gate"),
    waits(1, LIMIT_S + 1, phase="gate"),
    waits(2, LIMIT_S + 1, boundary=6, gates_passed=6),
]
"""Rank 1 is cut off; it has let rank 2 through the gate, which stands elsewhere now."""


def test_who_is_cut_off_is_blamed_rather_than_who_waits_elsewhere() -> None:
    assert culprit_of(*LET_THROUGH) == 2
    found = find_culprit(linked(LET_THROUGH, 1), STEP_S, POLICY)
    assert found is not None
    assert (found.rank, found.silent_s) == (1, LIMIT_S + 1)
    assert found.reason.startswith("rank 1's connections to ranks 0, 2 have not been answered for 6.0 s")


def test_nobody_is_blamed_before_all_have_been_asked_for_long_enough() -> None:
    early = linked(LET_THROUGH, 1)
    early[2] = dataclasses.replace(early[2], links=None)
    assert culprit_of(*early) is None
    for unknown in (linked(LET_THROUGH, -1, probed_s=1.0), [dataclasses.replace(v, links=None) for v in LET_THROUGH]):
        assert culprit_of(*unknown) is None
        later = [dataclasses.replace(v, silent_s=v.silent_s + POLICY.explain_grace_s) for v in unknown]
        assert culprit_of(*later) == 2, "nobody may ever answer"
    assert culprit_of(*linked(LET_THROUGH, -1)) == 2


SAME_PLACE = [waits(rank, LIMIT_S + 1) for rank in range(3)]


def test_where_all_wait_at_one_place_it_is_who_is_cut_off_or_nobody() -> None:
    assert culprit_of(*linked(SAME_PLACE, 0)) == 0
    assert culprit_of(*linked(SAME_PLACE, -1)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"waiting": False, "silent_s": 0.2, "idle_s": 0.2, "phase": "after"},  # a long evaluation
        {"idle_s": 0.2},  # it computes, inside of a backward
        {"silent_s": LIMIT_S - 0.1},
        {"news_age_s": 4.0},
        {"phase": "set-up", "waiting": False},
    ],
)
def test_dead_links_hurt_nobody_as_long_as_somebody_has_something_to_do(changes: dict[str, object]) -> None:
    vitals = linked(SAME_PLACE, 0)
    assert culprit_of(*vitals[:2], dataclasses.replace(vitals[2], **changes)) is None  # type: ignore[arg-type]  # of any of its fields


def test_a_stopped_rank_is_told_as_stopped_whatever_its_links_are() -> None:
    vitals = linked(SAME_PLACE, 1)
    vitals[1] = dataclasses.replace(vitals[1], process_state="T", stopped_s=2.0)
    found = find_culprit(vitals, STEP_S, POLICY)
    assert found is not None
    assert found.reason.startswith("rank 1 has been stopped")


def test_ranks_that_are_done_are_reached_or_not_like_others() -> None:
    done = [*SAME_PLACE[:2], works(2, LIMIT_S + 1, phase="finished")]
    assert culprit_of(*linked(done, 1)) == 1
    assert culprit_of(*linked(done, -1)) is None
    assert culprit_of(waits(0, LIMIT_S + 1, phase="gate"), *done[1:]) is None, "no odd one out where one is done"


IN_TIME = dataclasses.replace(POLICY, hang_timeout_s=30.0)


def behind(rank: int, silent_s: float, line: str) -> Vital:
    """A rank that waits behind its update, where ranks may wait in different lines for the same slow transfer."""
    return waits(rank, silent_s, phase="after", stack=(f"main (train.py:{line})",))


def test_ranks_that_all_wait_behind_their_update_are_given_as_long_as_the_user_says() -> None:
    def ranks(silent_s: float) -> list[Vital]:
        return [behind(0, silent_s, "9"), behind(1, silent_s, "7"), behind(2, silent_s, "9")]

    assert find_culprit(ranks(600.0), STEP_S, POLICY) is None
    assert find_culprit(ranks(29.0), STEP_S, IN_TIME) is None
    found = find_culprit(ranks(31.0), STEP_S, IN_TIME)
    assert found is not None
    assert (found.rank, found.silent_s) == (1, 31.0)
    assert (
        "all ranks have waited for 31.0 s (--hang-timeout 30 s); rank 1 waits at another line than ranks 0, 2"
        in found.reason
    )


def test_where_all_wait_at_one_line_the_one_that_has_come_least_far_makes_way_in_the_end() -> None:
    vitals = [behind(0, 31.0, "9"), dataclasses.replace(behind(1, 40.0, "9"), count=-1)]
    found = find_culprit(vitals, STEP_S, IN_TIME)
    assert found is not None
    assert found.rank == 1
    assert "nobody can tell because of which rank" in found.reason
    computing = [vitals[0], dataclasses.replace(vitals[1], idle_s=0.5)]
    assert find_culprit(computing, STEP_S, IN_TIME) is None


QUIET = (LinkState("10.0.0.1:7", "10.0.0.2:9", 0.0, 60.0, 0.5, quiet_s=POLICY.link_quiet_s + 1.0),)
BUSY = (dataclasses.replace(QUIET[0], quiet_s=1.0),)


def behind_the_update(rank: int, line: str, links: tuple[LinkState, ...] = QUIET) -> Vital:
    return waits(rank, LIMIT_S + 10, phase="after", stack=(line,), links=links)


def test_where_ranks_wait_in_different_lines_and_nothing_is_under_way_the_one_that_waits_alone_makes_way() -> None:
    vitals = [behind_the_update(0, "all_reduce (a.py:3)"), behind_the_update(1, "recv (a.py:2)")]
    vitals.append(behind_the_update(2, "all_reduce (a.py:3)"))
    found = find_culprit(vitals, STEP_S, POLICY)
    assert found is not None
    assert found.rank == 1
    assert found.reason.startswith(
        "all ranks wait, and nothing was sent between any of them for 9.0 s; rank 1 waits at another line than ranks 0, 2"
    )


@pytest.mark.parametrize(
    "other",
    [
        behind_the_update(1, "recv (a.py:2)", BUSY),  # a slow transfer
        behind_the_update(1, "recv (a.py:2)", ()),  # nobody has looked
        behind_the_update(1, "all_reduce (a.py:3)"),
        dataclasses.replace(behind_the_update(1, "recv (a.py:2)"), may_be_woken=True),
        behind_the_update(
            1, "recv (a.py:2)", (dataclasses.replace(QUIET[0], quiet_s=0.0),)
        ),  # over a device's own ways
    ],
)
def test_as_long_as_something_may_be_under_way_nobody_makes_way(other: Vital) -> None:
    assert find_culprit([behind_the_update(0, "all_reduce (a.py:3)"), other], STEP_S, POLICY) is None
