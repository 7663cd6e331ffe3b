"""The fallback ladder: the best way on that is open, and why each better one is not."""

from __future__ import annotations

import dataclasses

from torchrelay.controller.kube.decide.ladder import (
    FAIL,
    REFUSED,
    TAKEN,
    LadderCheckpoint,
    LadderSituation,
    choose_rung,
)
from torchrelay.protocol.kube import kube_names as kube

NOTHING = LadderSituation(rank=1, allowed=kube.FALLBACKS, no_spare="no spare is left for rank 1", checkpoint_dir="")
SAVED = dataclasses.replace(NOTHING, checkpoint_dir="/c", jit="/c/jit-40", jit_step=40)


def change(base: LadderSituation = NOTHING, **changes: object) -> LadderSituation:
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]  # of any of its fields


def test_what_survivors_have_saved_comes_first() -> None:
    rung = choose_rung(change(SAVED, found=[LadderCheckpoint("/c/50", 50)]))
    assert (rung.rung, rung.checkpoint, rung.step) == (kube.JIT_CHECKPOINT, "/c/jit-40", 40)
    assert [(t.rung, t.outcome) for t in rung.tried] == [
        (kube.NEXT_SPARE, REFUSED),
        (kube.RESPAWN, REFUSED),
        (kube.JIT_CHECKPOINT, TAKEN),
    ]
    assert "no spare is left for rank 1" in rung.reason


def test_where_survivors_cannot_save_the_newest_whole_checkpoint_is_taken() -> None:
    found = [
        LadderCheckpoint("/c/20", 20),
        LadderCheckpoint("/c/30", 30, "shard 1 is cut off"),
        LadderCheckpoint("/c/10", 10),
    ]
    rung = choose_rung(change(checkpoint_dir="/c", jit_refused="rank 1 alone held its shard", found=found))
    assert (rung.rung, rung.checkpoint, rung.step) == (kube.CHECKPOINT, "/c/20", 20)
    for text in ("rank 1 alone held its shard", "/c/30 is not whole: shard 1 is cut off"):
        assert text in rung.reason


def test_how_many_of_other_jobs_are_left_alone_is_told() -> None:
    rung = choose_rung(change(checkpoint_dir="/c", found=[LadderCheckpoint("/c/20", 20)], of_others=3))
    assert rung.checkpoint == "/c/20"
    assert "3 just-in-time checkpoints of other jobs are not taken" in rung.reason
    assert "other jobs" not in choose_rung(change(checkpoint_dir="/c")).reason


def test_newer_checkpoints_that_must_not_be_taken_are_set_aside_and_older_ones_are_not() -> None:
    found = [
        LadderCheckpoint("/c/40", 40),
        LadderCheckpoint("/c/30", 30, "cut off"),
        LadderCheckpoint("/c/20", 20),
        LadderCheckpoint("/c/10", 10, "cut off"),
    ]
    rung = choose_rung(change(checkpoint_dir="/c", found=found, restarts=(40, 40)))
    assert (rung.checkpoint, rung.aside) == ("/c/20", ("/c/40", "/c/30"))


def test_the_same_step_is_not_begun_a_third_time() -> None:
    found = [LadderCheckpoint("/c/20", 20), LadderCheckpoint("/c/10", 10)]
    rung = choose_rung(change(checkpoint_dir="/c", found=found, restarts=(20, 10, 20)))
    assert rung.checkpoint == "/c/10"
    assert "begun again at step 20 2 times" in rung.reason
    assert choose_rung(change(checkpoint_dir="/c", found=found, restarts=(20, 10))).checkpoint == "/c/20"


def test_a_just_in_time_checkpoint_wears_out_too() -> None:
    rung = choose_rung(change(SAVED, restarts=(40, 40)))
    assert rung.rung == FAIL
    assert "begun again at step 40 2 times" in rung.reason


def test_only_rungs_that_are_allowed_are_tried() -> None:
    rung = choose_rung(change(SAVED, allowed=(kube.CHECKPOINT,), found=[LadderCheckpoint("/c/20", 20)]))
    assert rung.rung == kube.CHECKPOINT
    assert [t.reason for t in rung.tried[:3]] == ["is not among what the job allows"] * 3


def test_a_folder_that_nobody_can_look_into_is_said() -> None:
    rung = choose_rung(change(checkpoint_dir="/c", unseen="no agent is there"))
    assert (rung.rung, rung.tried[-1].reason) == (FAIL, "no agent is there")


def test_at_the_end_everything_is_said() -> None:
    rung = choose_rung(NOTHING)
    assert rung.rung == FAIL
    assert [t.outcome for t in rung.tried] == [REFUSED] * 4
    for text in ("no spare is left", "names no folder for it", "names no folder in which to look"):
        assert text in rung.reason


def test_an_earlier_just_in_time_checkpoint_serves_again_and_nothing_is_set_aside_for_it() -> None:
    found = [
        LadderCheckpoint("/c/30", 30, "cut off"),
        LadderCheckpoint("/c/20", 20),
        LadderCheckpoint("/c/jit-20", 20, ours=True),
    ]
    rung = choose_rung(change(checkpoint_dir="/c", jit_refused="nobody can give its tensors", found=found))
    assert (rung.rung, rung.checkpoint, rung.aside, rung.ours) == (kube.CHECKPOINT, "/c/jit-20", (), True)
    rung = choose_rung(change(checkpoint_dir="/c", allowed=(kube.CHECKPOINT,), found=found))
    assert (rung.checkpoint, rung.aside, rung.ours) == ("/c/20", ("/c/30",), False)


def test_a_loss_that_has_come_at_the_same_step_twice_before_ends_the_job() -> None:
    third = change(SAVED, found=[LadderCheckpoint("/c/20", 20)], lost_at=40, losses_at_step=3)
    rung = choose_rung(third)
    assert rung.rung == FAIL
    assert [t.reason for t in rung.tried[2:]] == [
        "rank 1 was lost at step 40 3 times: the script or its data would meet the same end again"
    ] * 2
    assert choose_rung(dataclasses.replace(third, losses_at_step=2)).rung == kube.JIT_CHECKPOINT


def test_why_no_process_went_on_in_its_place_is_said() -> None:
    rung = choose_rung(change(SAVED, not_in_place="its pod does not start containers again"))
    assert rung.tried[1].reason == "its pod does not start containers again"
