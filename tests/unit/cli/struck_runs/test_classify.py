from __future__ import annotations

from dataclasses import replace

import pytest

from torchrelay.cli.display.summary import MigrationSummary, RestartSummary, RunSummary
from torchrelay.cli.struck_runs.classify import (
    FALLBACK,
    IDENTICAL,
    LOST,
    NO_MIGRATION,
    NOT_INJECTED,
    REDONE,
    WRONG,
    Ran,
    classify,
)
from torchrelay.protocol import events
from torchrelay.protocol.words.level import Level

FAULT = "kill:rank=1,step=5,phase=backward"
MOVED = MigrationSummary("m1", "unplanned", (1,), outcome="committed", steps_redone=1)
GIVEN_UP = MigrationSummary("m1", "unplanned", (1,), outcome="abandoned", outcome_reason="nobody holds a replica")
SAVED = MigrationSummary("m1", "unplanned", (1,), outcome="checkpoint", outcome_reason="no spare is left for rank 1")
PROTECTED = RunSummary(
    protection=Level.PROTECTED, was_protected=True, faults_injected=(FAULT,), migrations=(MOVED,), boundary=7
)
GOOD = Ran(0, PROTECTED, (), (), True)


def ended(exit_code: int | None, *migrations: MigrationSummary, reason: str = "", **more: object) -> Ran:
    return Ran(
        exit_code,
        replace(PROTECTED, migrations=migrations, reason=reason, **more),
        (),
        ("rank 0: nothing",),
        "faults_injected" not in more,
    )


def test_a_committed_migration_and_equal_numbers_are_identical() -> None:
    verdict = classify(GOOD)
    assert verdict.outcome == IDENTICAL
    assert verdict.reason == "unplanned of rank 1 in 0.00 s, 1 done again"


def test_other_numbers_are_wrong_whatever_the_migration_says() -> None:
    assert classify(replace(GOOD, differences=("rank 1: model differs",))).outcome == WRONG


def test_other_numbers_are_wrong_even_where_no_fault_struck() -> None:
    ran = Ran(76, replace(PROTECTED, faults_injected=(), migrations=()), (), ("rank 0: model differs",), False)
    assert classify(ran).outcome == WRONG


def test_a_migration_that_was_refused_from_the_start_has_its_reason() -> None:
    verdict = classify(
        ended(137, reason="rank 1 (n0.w1) was killed by signal 9 and cannot be replaced: rank 1: a hook")
    )
    assert (verdict.outcome, verdict.reason) == (FALLBACK, "stopped: rank 1: a hook")
    assert classify(ended(137, reason="rank 1 (n0.w1) was killed by signal 9")).outcome == LOST


def test_of_many_differences_the_first_are_told() -> None:
    verdict = classify(replace(GOOD, differences=tuple(f"d{i}" for i in range(9))))
    assert verdict.reason == "d0; d1; d2; d3 and 5 more"


def test_a_fault_that_never_struck_is_not_injected() -> None:
    ran = Ran(76, replace(PROTECTED, faults_injected=(), migrations=()), (), (), False)
    assert classify(ran).outcome == NOT_INJECTED


def test_why_nothing_was_injected_is_told_where_protection_was_off() -> None:
    summary = RunSummary(protection=Level.UNPROTECTED, protection_reason="only gloo can be migrated yet")
    assert classify(Ran(76, summary, (), (), False)).reason == "not protected: only gloo can be migrated yet"


def test_equal_numbers_without_a_migration_prove_nothing() -> None:
    assert classify(replace(GOOD, summary=replace(PROTECTED, migrations=()))).outcome == NO_MIGRATION


def test_an_abandoned_planned_move_has_its_reason() -> None:
    verdict = classify(replace(GOOD, summary=replace(PROTECTED, migrations=(GIVEN_UP,))))
    assert (verdict.outcome, verdict.reason) == (NO_MIGRATION, "nobody holds a replica")


@pytest.mark.parametrize(
    ("kind", "steps", "outcome"),
    [
        ("planned", 0, IDENTICAL),
        ("planned", 1, REDONE),
        ("unplanned", 2, REDONE),
        ("rollback", 1, IDENTICAL),
        ("rollback", 2, REDONE),
    ],
)
def test_more_steps_done_again_than_need_be_are_no_identical_run(kind: str, steps: int, outcome: str) -> None:
    moved = replace(MOVED, kind=kind, steps_redone=steps)
    verdict = classify(replace(GOOD, summary=replace(PROTECTED, migrations=(moved,))))
    assert (verdict.outcome, verdict.steps_redone) == (outcome, steps)
    assert verdict.reason.endswith(f"{steps} done again" if steps else "none done again")


def test_a_run_that_went_further_back_and_has_other_numbers_is_wrong() -> None:
    moved = replace(MOVED, kind="rollback", steps_redone=3)
    ran = replace(GOOD, summary=replace(PROTECTED, migrations=(moved,)), differences=("rank 0: model differs",))
    assert classify(ran).outcome == WRONG


def test_a_just_in_time_checkpoint_is_a_fallback() -> None:
    verdict = classify(ended(75, SAVED, checkpoint="jit/step-5"))
    assert verdict.outcome == FALLBACK
    assert verdict.reason == "checkpoint: no spare is left for rank 1"


def test_what_the_spare_could_not_do_is_the_cause_of_its_loss() -> None:
    told = events.Decision("m1", "generation 2: n0.s0 could not take over rank 1: ValueError: no")
    ran = replace(ended(75, SAVED, checkpoint="jit/step-5"), occurrences=(told,))
    assert classify(ran).reason == "checkpoint: n0.s0 could not take over rank 1: ValueError: no"


def test_a_stop_with_a_named_reason_is_a_fallback() -> None:
    verdict = classify(ended(137, GIVEN_UP))
    assert (verdict.outcome, verdict.reason) == (FALLBACK, "stopped: nobody holds a replica")


def test_a_job_that_was_never_protected_ends_in_the_fallback() -> None:
    ran = ended(
        137,
        protection=Level.UNPROTECTED,
        was_protected=False,
        protection_reason="the process group uses ucc",
    )
    assert classify(ran).outcome == FALLBACK
    assert "uses ucc" in classify(ran).reason


def test_an_end_that_nobody_explains_is_lost() -> None:
    assert classify(ended(137)).outcome == LOST


def test_an_exception_in_a_survivor_is_lost_even_if_a_migration_was_given_up() -> None:
    verdict = classify(ended(1, GIVEN_UP, reason="the script failed on rank 0: RuntimeError: x"))
    assert verdict.outcome == LOST
    assert "RuntimeError: x" in verdict.reason


def test_a_survivor_that_aborts_is_lost() -> None:
    aborted = events.WorkerEnded("n0.w0", 0, 134, 6, False)
    verdict = classify(replace(ended(134, GIVEN_UP), occurrences=(aborted,)))
    assert verdict.outcome == LOST
    assert verdict.reason.startswith("rank 0 (n0.w0) was killed by SIGABRT")


def test_no_end_in_time_is_lost_and_says_where_it_stood() -> None:
    stuck = replace(MOVED, outcome="under way", phase="rebuild")
    verdict = classify(ended(None, stuck))
    assert (verdict.outcome, verdict.reason) == (LOST, "no end within its time; a migration stood in rebuild")


def test_no_end_in_time_before_the_fault_is_lost() -> None:
    assert classify(ended(None, faults_injected=())).outcome == LOST


def test_a_crash_before_the_fault_is_lost() -> None:
    verdict = classify(ended(1, faults_injected=(), reason="the script failed on rank 0"))
    assert (verdict.outcome, verdict.reason) == (
        LOST,
        "exit code 1 before the fault struck: the script failed on rank 0",
    )


RESPAWNED = events.ProcessRespawned(1, "n0", 5, 1, 3)


def test_a_process_that_was_started_in_the_place_of_the_lost_one_is_identical() -> None:
    summary = replace(PROTECTED, respawns=(RESPAWNED,))
    assert classify(replace(GOOD, kind="respawn", summary=summary)).outcome == IDENTICAL


def test_a_rank_that_another_process_took_over_says_nothing_of_respawns() -> None:
    verdict = classify(replace(GOOD, kind="respawn"))
    assert (verdict.outcome, verdict.reason) == (
        NO_MIGRATION,
        "no process was started in the place of the lost one",
    )


def refilled(**changes: object) -> Ran:
    again = replace(MOVED, migration="m2", ranks=(0,))
    summary = replace(
        PROTECTED, faults_injected=(FAULT, "kill:rank=0,step=9"), migrations=(MOVED, again), spares_made=("n0.s1",)
    )
    return replace(GOOD, kind="refill", summary=replace(summary, **changes))


def test_two_losses_that_spares_survive_with_one_made_between_them_are_identical() -> None:
    verdict = classify(refilled())
    assert (verdict.outcome, verdict.steps_redone) == (IDENTICAL, 2)
    assert (
        verdict.reason
        == "unplanned of rank 1 in 0.00 s, 1 done again, then unplanned of rank 0 in 0.00 s, 1 done again"
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"spares_made": ()}, "no new spare was made"),
        ({"migrations": (MOVED,)}, "2 ranks were lost, and 1 taken over"),
    ],
)
def test_two_losses_without_a_new_spare_or_a_second_take_over_show_no_refilling(
    changes: dict[str, object], reason: str
) -> None:
    verdict = classify(refilled(**changes))
    assert (verdict.outcome, verdict.reason) == (NO_MIGRATION, reason)


def begun_anew(rung: str = "jit-checkpoint", boundary: int = 4, steps: int = 0, **changes: object) -> Ran:
    restart = RestartSummary(1, rung, "jit/step-4", boundary, steps, "rank 1 was killed", (), 6.5)
    return replace(GOOD, kind="restart", summary=replace(PROTECTED, migrations=(), restarts=(restart,)), **changes)


@pytest.mark.parametrize(
    ("ran", "outcome", "steps", "reason"),
    [
        (begun_anew(), IDENTICAL, 0, "begun anew (jit-checkpoint) at step 4 in 6.50 s, none done again"),
        (begun_anew(steps=1), IDENTICAL, 1, "begun anew (jit-checkpoint) at step 4 in 6.50 s, 1 done again"),
        (begun_anew(steps=2), REDONE, 2, "begun anew (jit-checkpoint) at step 4 in 6.50 s, 2 done again"),
        (begun_anew("script", -1, 5), REDONE, 5, "begun anew (script) from its beginning in 6.50 s, 5 done again"),
    ],
)
def test_a_job_that_was_begun_anew_with_equal_numbers_is_judged_by_the_steps_that_this_cost(
    ran: Ran, outcome: str, steps: int, reason: str
) -> None:
    verdict = classify(ran)
    assert (verdict.outcome, verdict.steps_redone, verdict.reason) == (outcome, steps, reason)


def test_a_job_that_was_begun_anew_with_other_numbers_is_wrong() -> None:
    assert classify(begun_anew(differences=("rank 0: model differs",))).outcome == WRONG


def test_a_job_that_was_to_be_begun_anew_and_was_not_shows_nothing() -> None:
    verdict = classify(replace(GOOD, kind="restart"))
    assert (verdict.outcome, verdict.reason) == (
        NO_MIGRATION,
        "the fault struck, and the job was not started anew",
    )
