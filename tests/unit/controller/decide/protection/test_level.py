"""One decision says how far a job is protected, and never more than is so."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from torchrelay.controller.decide.protection.coverage import coverage
from torchrelay.controller.decide.protection.known import Known, gaps_of
from torchrelay.controller.decide.protection.level import LevelDecision, protection
from torchrelay.protocol.messages import Gap, Rehearsed, ReplicaCheck, Report
from torchrelay.protocol.names import BARS, LEFT, NO_JOINER, REHEARSAL_FAILED
from torchrelay.protocol.words.causes import ProtectionCause as Cause
from torchrelay.protocol.words.level import Level

EQUAL = (ReplicaCheck(4, {"w": "aa"}, ("w",)),)
SETTLED = Report("train.py", 30, 400, 900, 4, (), (), (), 5, True)
COPIED = dataclasses.replace(SETTLED, copy_every=5, copy_bytes=4096)
SHARDED: dict[str, object] = {
    "copy_every": 5,
    "reports": {0: COPIED, 1: COPIED},
    "checks": {rank: (ReplicaCheck(4, {"shard": str(rank)}),) for rank in range(2)},
}
READY = Known(2, "on", "", {0: SETTLED, 1: SETTLED}, {0: EQUAL, 1: EQUAL}, 0.5, 6.5)


def found(known: Known = READY, **changes: object) -> LevelDecision:
    known = dataclasses.replace(known, **changes)  # type: ignore[arg-type]  # of any of its fields
    return protection(known, gaps_of(known))


def test_a_job_that_has_all_it_needs_is_protected() -> None:
    assert found() == LevelDecision(Level.PROTECTED, "any rank can be replaced, at any moment of a step")


@pytest.mark.parametrize("spares", [{"spares_ready": 1}, {"spares_ready": 0}])
def test_armed_ranks_are_not_protected_before_the_loop_has_come_round(spares: dict[str, int]) -> None:
    for reports in ({}, {0: SETTLED}, {0: SETTLED, 1: dataclasses.replace(SETTLED, settled=False)}):
        told = found(reports=reports, **spares)
        assert told.level is Level.ARMED
        assert "has not come round" in told.reason


def test_without_a_spare_it_says_so_and_what_one_would_bring() -> None:
    told = found(spares_ready=0)
    assert (told.level, told.for_want_of_a_spare) == (Level.UNPROTECTED, True)
    assert told.reason.startswith("no spare is there, so a lost rank ends the job in a just-in-time checkpoint")
    assert told.reason.endswith("With one: protected: any rank can be replaced, at any moment of a step")
    left = dataclasses.replace(SETTLED, gaps=(Gap("object", LEFT, "db"),))
    assert "With one: partly protected: " in found(spares_ready=0, reports={0: left, 1: left}).reason


def test_a_spare_that_is_on_its_way_is_waited_for() -> None:
    told = found(spares_ready=0, spares_coming=1)
    assert told.level is Level.ARMED
    assert "waits for one that is on its way" in told.reason


def test_copies_of_every_rank_stand_in_for_a_spare() -> None:
    told = found(spares_ready=0, **SHARDED)
    assert told.level is Level.PARTLY
    assert "begins anew in its place, and all go back to their copies" in told.reason
    assert "up to 10 steps" in told.reason
    not_yet = {**SHARDED, "reports": {0: COPIED, 1: SETTLED}}
    assert found(spares_ready=0, **not_yet).level is Level.UNPROTECTED
    held_twice = {**SHARDED, "checks": {0: EQUAL, 1: EQUAL}}
    told = found(spares_ready=0, **held_twice)
    assert (told.level, "just-in-time checkpoint" in told.reason) == (Level.UNPROTECTED, True)


def test_what_ranks_carry_themselves_helps_a_new_process_alone() -> None:
    held = {r: (ReplicaCheck(4, {"w": "aa", "own": str(r)}, carried=("own",)),) for r in range(2)}
    carried = {**SHARDED, "checks": held}
    assert found(**carried).level is Level.PROTECTED
    told = found(spares_ready=0, **carried)
    assert told.level is Level.PARTLY
    assert "begins anew in its place, and all go back to their copies" in told.reason
    assert "With one: protected" in told.reason
    not_copied = {**carried, "reports": {0: SETTLED, 1: SETTLED}}
    assert found(spares_ready=0, **not_copied).level is Level.UNPROTECTED
    assert found(spares_ready=0, respawns=True, **carried).level is Level.PROTECTED


def test_a_machine_is_covered_only_once_others_have_its_journals() -> None:
    told = found(nodes=2)
    assert told.level is Level.PARTLY
    assert told.reason == (
        "any rank can be replaced, at any moment of a step; but the loss of a whole machine ends the job: "
        "no other machine has all that its ranks hold yet"
    )
    assert found(nodes=2, copied=frozenset({0})) == told
    told = found(nodes=2, copied=frozenset({0, 1}))
    assert told.level is Level.PROTECTED
    assert "a machine that is lost: that of the controller too, if" in told.reason


def test_a_machine_with_all_ranks_leaves_nobody_when_it_is_lost() -> None:
    copied = frozenset({0, 1})
    told = found(nodes=2, copied=copied, kept_elsewhere=copied, machine_of={0: "n1", 1: "n1"})
    assert told.level is Level.PARTLY
    assert "all ranks are on n1, so no rank would be left" in told.reason
    assert found(nodes=2, copied=copied, machine_of={0: "n0", 1: "n1"}).level is Level.PROTECTED


def test_while_a_spare_is_made_the_promise_comes_first_and_then_what_a_loss_waits_for() -> None:
    told = found(spares_ready=0, spares_coming=1, refilling=True, respawns=True)
    assert told.level is Level.PROTECTED
    assert told.reason == (
        "any rank can be replaced, at any moment of a step; a rank that is lost now waits for the spare that is being made"
    )


@pytest.mark.parametrize("ranks", [4, 130])
def test_who_holds_the_same_on_the_same_machine_alone_is_of_no_use_when_that_is_lost(ranks: int) -> None:
    half = ranks // 2
    checks = {rank: (ReplicaCheck(4, {"w": str(rank // half)}, ("w",)),) for rank in range(ranks)}
    everywhere: dict[str, object] = {
        "world_size": ranks,
        "reports": dict.fromkeys(range(ranks), SETTLED),
        "checks": checks,
        "nodes": 2,
        "copied": frozenset(range(ranks)),
    }
    beside = {rank: f"n{rank // half}" for rank in range(ranks)}
    assert found(**everywhere, machine_of=beside).level is Level.PARTLY
    assert found(**everywhere, machine_of=beside, kept_elsewhere=frozenset(range(ranks))).level is Level.PROTECTED
    across = {rank: f"n{rank % 2}" for rank in range(ranks)}
    assert found(**everywhere, machine_of=across).level is Level.PROTECTED


def test_what_somebody_has_chosen_comes_before_what_could_be() -> None:
    assert found(losses_barred="its policy is planned-only") == LevelDecision(
        Level.PARTLY, "only planned moves: its policy is planned-only", cause=Cause.PLANNED_ONLY
    )
    told = found(losses_barred="its policy is planned-only", spares_ready=0)
    assert (told.level, told.reason.partition(".")[0]) == (
        Level.UNPROTECTED,
        "no spare is there, so no rank can be moved",
    )
    assert found(protection="off", protection_reason="it observes") == LevelDecision(
        Level.UNPROTECTED, "it observes", cause=Cause.OFF
    )


def test_what_bars_counts_whether_or_not_there_is_a_spare() -> None:
    bars = dataclasses.replace(SETTLED, gaps=(Gap("iterator", BARS, "it", "train.py", 7),))
    for spares in (0, 1):
        assert found(spares_ready=spares, reports={0: SETTLED, 1: bars}) == LevelDecision(
            Level.UNPROTECTED, "it", cause=Cause.GAPS
        )


def test_a_rehearsal_that_failed_names_the_copies_where_there_are_any() -> None:
    gap = Gap("rehearsal", NO_JOINER, "rank 1 could not be replaced", "train.py", 3)
    failed = {1: Rehearsed(1, 1, 40, REHEARSAL_FAILED, "ImportError: x", (gap,))}
    told = found(rehearsed=failed)
    assert (told.level, "a just-in-time checkpoint is what is left" in told.reason) == (Level.PARTLY, True)
    assert "all try to begin anew from their copies" in found(rehearsed=failed, **SHARDED).reason


def test_a_file_that_was_changed_since_the_ranks_loaded_it_is_the_reason() -> None:
    gap = Gap(
        "text",
        NO_JOINER,
        "train.py: changed since this rank loaded it, so no new process runs what it runs",
        "train.py",
    )
    changed = dataclasses.replace(SETTLED, gaps=(gap,))
    told = found(reports={0: changed, 1: changed})
    assert (told.level, told.cause) == (Level.UNPROTECTED, Cause.GAPS)
    assert (
        told.reason
        == f"no rank could be replaced: {gap.text}; a just-in-time checkpoint is what is left if one is lost"
    )
    assert found(reports={0: SETTLED, 1: changed}).reason.startswith("rank 1 could not be replaced: train.py: changed")


@pytest.mark.parametrize(
    "how", [{}, {"spares_ready": 0, "respawns": True}, {"spares_ready": 0, "spares_coming": 1, "refilling": True}]
)
def test_where_rehearsals_have_refuted_every_rank_nothing_is_promised(how: dict[str, Any]) -> None:
    def refuted(rank: int) -> Rehearsed:
        gap = Gap("rehearsal", NO_JOINER, f"rank {rank} could not be replaced", "train.py", 3)
        return Rehearsed(rank, 1, 40, REHEARSAL_FAILED, "ImportError: x", (gap,))

    every = {rank: refuted(rank) for rank in range(2)}
    told = found(rehearsed=every, **how)
    assert (told.level, told.reason) == (
        Level.UNPROTECTED,
        "no rank could be replaced, as a rehearsal has shown; a just-in-time checkpoint is what is left if one is lost",
    )
    assert found(rehearsed={0: every[0]}, **how).level is not Level.UNPROTECTED


def test_copies_are_a_rung_that_rehearsals_of_every_rank_do_not_refute() -> None:
    gap = Gap("rehearsal", NO_JOINER, "could not be replaced", "train.py", 3)
    every = {rank: Rehearsed(rank, 1, 40, REHEARSAL_FAILED, "ImportError: x", (gap,)) for rank in range(2)}
    assert found(rehearsed=every, **SHARDED).level is Level.PARTLY


def test_the_table_of_a_job_without_a_spare_promises_nothing() -> None:
    rows = coverage(dataclasses.replace(READY, spares_ready=0)).against
    assert [row.answer for row in rows] == ["no", "no", "no"]
    assert "just-in-time checkpoint" in rows[0].how


def test_a_process_that_is_started_in_the_place_of_a_lost_one_stands_in_for_a_spare() -> None:
    told = found(spares_ready=0, respawns=True)
    assert (told.level, told.for_want_of_a_spare) == (Level.PROTECTED, False)
    expected = "a process that dies is started again in its place: any rank can be replaced, at any moment of a step"
    assert told.reason == expected
    report = coverage(dataclasses.replace(READY, spares_ready=0, respawns=True))
    answers = {a.what: (a.answer, a.how) for a in report.against}
    assert answers["a process that dies"][1].startswith("a new process is started in its place, and takes over")
    assert answers["a planned move"] == ("no", "no spare is there")


def test_it_does_not_once_its_limit_is_used_up_or_nobody_holds_the_same() -> None:
    spent = found(spares_ready=0, respawns=True, respawns_spent="all is used up")
    assert spent.level is Level.UNPROTECTED
    assert "(all is used up), so a lost rank ends the job" in spent.reason
    alone = {rank: (ReplicaCheck(4, {"shard": str(rank)}),) for rank in range(2)}
    assert found(spares_ready=0, respawns=True, checks=alone).level is Level.UNPROTECTED


def test_without_room_for_its_journals_no_process_could_take_over() -> None:
    told = found(joiner_lacks="/dev/shm has 0.1 MiB left, and 2.0 MiB are needed")
    assert told.level is Level.UNPROTECTED
    assert "no room for its journals: /dev/shm has 0.1 MiB left" in told.reason
    assert found(joiner_lacks="/dev/shm is full", protection="pending").level is Level.PENDING


def test_a_checkpoint_that_could_not_be_written_takes_one_rung_away() -> None:
    lack = "/jit has 1.0 MiB left, and 2.0 GiB are needed"
    told = found(checkpoint_lacks=lack)
    assert told.level is Level.PARTLY
    assert told.reason == (
        "any rank can be replaced, at any moment of a step; but where no rank can take over nothing can be saved: "
        + lack
    )
    alone = found(checkpoint_lacks=lack, spares_ready=0)
    assert (alone.level, alone.for_want_of_a_spare) == (Level.UNPROTECTED, True)
    assert alone.reason.endswith(f"in such a case nothing can be saved: {lack}")


def test_a_refuted_rank_is_not_said_to_begin_again_in_its_place() -> None:
    gap = Gap("rehearsal", NO_JOINER, "rank 1 could not be replaced", "train.py", 3)
    failed = {1: Rehearsed(1, 1, 40, REHEARSAL_FAILED, "ImportError: x", (gap,))}
    told = found(rehearsed=failed, spares_ready=0, respawns=True)
    assert (told.level, told.in_place) == (Level.PARTLY, True)
    assert told.reason.startswith("rank 1 could not be replaced, as a rehearsal has shown")


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({}, Cause.COVERED),
        ({"reports": {}}, Cause.SET_UP),
        ({"protection": "pending"}, Cause.SET_UP),
        ({"protection": "off"}, Cause.OFF),
        ({"spares_ready": 0}, Cause.NO_SPARE),
        ({"spares_ready": 0, "spares_coming": 1}, Cause.NO_SPARE),
        ({"losses_barred": "planned-only"}, Cause.PLANNED_ONLY),
        ({"joiner_lacks": "/dev/shm is full"}, Cause.NO_ROOM),
        ({"checkpoint_lacks": "/jit is full"}, Cause.NO_ROOM),
        ({"nodes": 2}, Cause.MACHINE),
        (SHARDED, Cause.NO_REPLICA),
        (
            {"reports": dict.fromkeys(range(2), dataclasses.replace(SETTLED, gaps=(Gap("object", LEFT, "db"),)))},
            Cause.GAPS,
        ),
        ({"reports": {0: SETTLED, 1: dataclasses.replace(SETTLED, gaps=(Gap("object", BARS, "db"),))}}, Cause.GAPS),
    ],
)
def test_what_the_level_hangs_on_is_told_in_one_word(changes: dict[str, object], cause: Cause) -> None:
    told = found(**changes)
    assert told.cause is cause
    assert (told.level is Level.PROTECTED) <= (cause is Cause.COVERED), "a level that is whole lacks nothing"


def test_where_a_loop_begins_nothing_is_promised_for_what_is_behind_its_first_update() -> None:
    """What ranks held alike in the loop before, each of them may train in a way of its own in this one."""
    begins = ReplicaCheck(9, {"m1": "1"}, since=9)
    before = [ReplicaCheck(4, {"m1": "0"}), ReplicaCheck(5, {"m1": "1"})]
    known = {rank: [*before, begins] for rank in (0, 1)}
    assert found(checks=known).level is Level.PARTLY
    known = {rank: [*checks, ReplicaCheck(10, {"m1": "2"}, since=9)] for rank, checks in known.items()}
    assert found(checks=known).level is Level.PROTECTED
