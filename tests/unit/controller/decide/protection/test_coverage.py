from __future__ import annotations

import dataclasses

import pytest

from torchrelay.controller.decide.protection.coverage import coverage
from torchrelay.controller.decide.protection.known import Known
from torchrelay.controller.decide.replacement.replaceable import replaceable
from torchrelay.protocol.messages import Gap, Rehearsed, ReplicaCheck, Report
from torchrelay.protocol.names import (
    ALONE,
    BARS,
    BARS_LATER,
    BEHIND_UPDATE,
    GOES_BACK,
    LEFT,
    NO_JOINER,
    PART_OF_STEP,
    REHEARSAL_FAILED,
    REHEARSAL_SAME,
)

EQUAL = (ReplicaCheck(4, {"w": "aa"}, ("w",)),)


def report(*gaps: Gap, **changes: object) -> Report:
    made = Report(
        "train.py", 30, 400, 900, 4, (), ("rows: taken for data",), gaps, 5, True, 0.001, 0.0005, 0.0001, 4096
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]  # of any of its fields


def known(*reports: Report, **changes: object) -> Known:
    checks = dict.fromkeys(range(len(reports)), EQUAL)
    made = Known(len(reports), "on", "all ranks are armed", dict(enumerate(reports)), checks, 0.5, 6.5)
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]  # of any of its fields


def test_the_report_says_how_tensors_are_protected_between_machines() -> None:
    made = [report(transfer_encryption=chosen) for chosen in ("integrity", "integrity", "off")]
    assert coverage(known(*made, nodes=1)).transfer_encryption == "", "there is nothing between them"
    assert coverage(known(*made[:2], nodes=2)).transfer_encryption == "integrity"
    assert coverage(known(*made, nodes=2)).transfer_encryption == "integrity,off"


def test_a_job_without_gaps_is_protected_with_the_highest_cost_of_a_rank() -> None:
    found = coverage(known(report(), report(head_s=0.002)))
    assert (found.level, found.file, found.line, found.head_s, found.step_s) == (
        "protected",
        "train.py",
        30,
        0.002,
        0.5,
    )
    assert [row.answer for row in found.against] == ["yes", "yes", "yes", "no"]
    assert "6.5 s" in found.against[1].how
    assert found.notes == ("rows: taken for data",)


def test_equal_gaps_are_one_with_its_ranks_and_the_worst_comes_first() -> None:
    left, bars = Gap("object", LEFT, "db"), Gap("iterator", BARS, "it", "train.py", 7)
    found = coverage(known(report(left, bars), report(left), report(bars)))
    assert [(gap.kind, gap.ranks, gap.line) for gap in found.gaps] == [("iterator", (0, 2), 7), ("object", (0, 1), 0)]
    assert (found.level, found.reason) == ("unprotected", "it")
    assert {row.answer for row in found.against} == {"no"}


@pytest.mark.parametrize(
    ("effect", "dies", "moves"),
    [
        (BARS_LATER, "partly", "partly"),
        (PART_OF_STEP, "partly", "yes"),
        (BEHIND_UPDATE, "partly", "yes"),
        (LEFT, "partly", "partly"),
    ],
)
def test_a_gap_that_does_not_bar_leaves_the_job_partly_protected(effect: str, dies: str, moves: str) -> None:
    found = coverage(known(report(Gap("kind", effect, "text")), report()))
    assert found.level == "partly"
    assert (found.against[0].answer, found.against[2].answer) == (dies, moves)


def test_tensors_that_nobody_else_has_are_a_gap_of_their_rank() -> None:
    own = (ReplicaCheck(4, {"w": "aa", "mine": "bb"}),)
    found = coverage(known(report(), report(), report(), checks={0: EQUAL, 1: EQUAL, 2: own}))
    assert [(gap.effect, gap.ranks) for gap in found.gaps] == [(ALONE, (2,))]
    assert "mine" in found.gaps[0].text
    assert (found.level, found.against[0].answer, found.against[2].answer) == ("partly", "partly", "yes")
    everybody = {rank: (ReplicaCheck(4, {"shard": str(rank)}),) for rank in range(2)}
    found = coverage(known(report(), report(), checks=everybody))
    assert (found.level, found.against[0].answer, found.against[2].answer) == ("partly", "no", "yes")


def test_with_copies_a_rank_that_is_alone_takes_all_back() -> None:
    alone = {rank: (ReplicaCheck(4, {"shard": str(rank)}),) for rank in range(2)}
    made = report(copy_every=5, copy_bytes=4096, copy_s=0.002)
    found = coverage(known(made, report(), checks=alone, copy_every=5))
    assert [(gap.effect, gap.ranks) for gap in found.gaps] == [(ALONE, (0,)), (ALONE, (1,))], "not before all have one"
    assert "no whole copies" in found.gaps[0].text
    assert (found.level, found.against[0].answer) == ("partly", "no")
    found = coverage(known(made, made, checks=alone, copy_every=5))
    assert [(gap.effect, gap.ranks) for gap in found.gaps] == [(GOES_BACK, (0,)), (GOES_BACK, (1,))]
    assert (found.level, found.against[0].answer) == ("partly", "partly")
    assert "every 5 steps: up to 10 steps are done again" in found.reason
    assert (found.copy_every, found.copy_bytes, found.copy_s, found.copy_sync) == (5, 4096, 0.002, False)
    found = coverage(known(made, made, checks=alone, copy_every=5, copy_sync=True))
    assert "every 5 steps, before the next one begins: at most 5 steps are done again" in found.reason
    assert found.copy_sync
    found = coverage(known(made, made, checks=alone, copy_every=1, copy_sync=True))
    assert "before each step: at most 1 step is done again" in found.reason


def test_copies_as_needed_count_from_the_first_one_on_and_not_before() -> None:
    alone = {rank: (ReplicaCheck(4, {"shard": str(rank)}),) for rank in range(2)}
    found = coverage(known(report(), report(), checks=alone, as_needed=True))
    assert (found.level, found.against[0].answer) == ("partly", "no")
    assert "no whole copies" in found.gaps[0].text
    made = report(copy_bytes=4096)
    found = coverage(known(made, made, checks=alone, as_needed=True))
    assert {gap.effect for gap in found.gaps} == {GOES_BACK}
    assert found.against[0].answer == "partly"
    assert "of which there is one each so far: the steps since then are done again" in found.reason


def test_copies_that_are_not_needed_or_fail_are_said() -> None:
    assert coverage(known(report(), report(), copy_every=5)).copy_every == 0
    alone = {rank: (ReplicaCheck(4, {"shard": str(rank)}),) for rank in range(2)}
    full = report(copy_failed="the state could not be copied at boundary 5: no room")
    found = coverage(known(full, report(), checks=alone, copy_every=5))
    assert (ALONE, (0,), full.copy_failed) in [(gap.effect, gap.ranks, gap.text) for gap in found.gaps]


def test_a_machine_with_a_rank_that_is_alone_needs_a_copy_of_its_state_elsewhere() -> None:
    alone = {rank: (ReplicaCheck(4, {"shard": str(rank)}),) for rank in range(2)}
    made = report(copy_bytes=4096)
    two = known(made, made, checks=alone, copy_every=5, nodes=2, copied=frozenset({0, 1}))
    (row,) = [row for row in coverage(two).against if "machine" in row.what]
    assert (row.answer, row.how) == ("no", "no other machine has a copy of the state of rank 0, 1")
    two = dataclasses.replace(two, kept_elsewhere=frozenset({0, 1}))
    (row,) = [row for row in coverage(two).against if "machine" in row.what]
    assert row.answer == "partly"


def test_a_rank_whose_check_came_first_is_not_yet_compared() -> None:
    checks = {
        0: (ReplicaCheck(4, {"shard": "0"}), ReplicaCheck(8, {"shard": "1"})),
        1: (ReplicaCheck(4, {"shard": "2"}),),
    }
    assert len(coverage(known(report(), report(), checks=checks)).gaps) == 2, (
        "boundary 4 counts until all have checked 8"
    )


def test_before_the_first_update_equal_or_unequal_tensors_prove_nothing() -> None:
    early = {rank: (ReplicaCheck(0, {"w": str(rank)}),) for rank in range(2)}
    assert coverage(known(report(), report(), checks=early)).gaps == ()


def test_a_job_of_one_rank_can_only_be_moved() -> None:
    found = coverage(known(report()))
    assert (found.level, found.against[0].answer, found.against[2].answer) == ("partly", "no", "yes")


def test_a_level_is_said_only_when_it_is_known() -> None:
    assert coverage(known(report(), report(), protection="pending", protection_reason="waits")).reason == "waits"
    unsettled = coverage(known(report(), report(settled=False)))
    assert (unsettled.level, unsettled.against) == ("armed", ())
    assert "the training loop has not come round" in unsettled.reason
    off = coverage(known(report(), report(), protection="off", protection_reason="rank 1: nccl"))
    assert (off.level, off.reason) == ("unprotected", "rank 1: nccl")


def test_a_rank_that_bars_is_named_before_a_spare_is_spent() -> None:
    assert replaceable({}).yes
    assert replaceable({0: (Gap("object", LEFT, "db"), Gap("kept-workers", BARS_LATER, "later")), 1: ()}).yes
    verdict = replaceable({0: (), 1: (Gap("iterator", BARS, "it: cannot be captured", "train.py", 7),)})
    assert (verdict.yes, verdict.reason) == (False, "rank 1: it: cannot be captured (train.py:7)")


def test_a_machine_is_replaceable_once_others_have_the_journals_of_all_its_ranks() -> None:
    two = known(report(), report(), nodes=2, copied=frozenset({0}))
    (row,) = [row for row in coverage(two).against if "machine" in row.what]
    assert (row.answer, row.how) == ("no", "no other machine has the journals of rank 1 yet")
    (row,) = [r for r in coverage(dataclasses.replace(two, copied=frozenset({0, 1}))).against if "machine" in r.what]
    assert row.answer == "partly"
    assert "controller" in row.how


def test_a_rehearsal_that_failed_lowers_the_level_and_says_what_is_left() -> None:
    gap = Gap("rehearsal", NO_JOINER, "rehearsal: rank 1 could not be replaced: ImportError: x", "train.py", 3)
    failed = {1: Rehearsed(1, 1, 40, REHEARSAL_FAILED, "ImportError: x", (gap,))}
    found = coverage(known(report(), report(), rehearsed=failed))
    assert found.level == "partly"
    assert found.reason.startswith("rank 1 could not be replaced, as a rehearsal has shown; a just-in-time checkpoint")
    assert [(g.kind, g.ranks, g.line) for g in found.gaps] == [("rehearsal", (1,), 3)]
    assert found.rehearsed == ("rehearsed at step 40: rank 1 of 2 could not be replaced: ImportError: x",)


def test_a_rehearsal_that_succeeded_is_told() -> None:
    found = coverage(known(report(), report(), rehearsed={0: Rehearsed(1, 0, 40, REHEARSAL_SAME, "")}))
    assert found.level == "protected"
    assert found.rehearsed == ("rehearsed at step 40: rank 0 of 2, bitwise",)
