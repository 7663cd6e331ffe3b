"""The fallback ladder: the best way on that is open, and why each better one is not."""

from __future__ import annotations

import dataclasses

from torchrelay.controller.kube.decide.ladder import FAIL, WAIT, Found, Situation, choose_rung
from torchrelay.protocol import kube_names as kube

NOTHING = Situation(
    rank=1,
    allowed=kube.FALLBACKS,
    warm_spares=0,
    coming=0,
    waited_s=0.0,
    wait_s=300.0,
    checkpoint_dir="",
    jit_refused="",
    jit_step=40,
)


def change(**changes: object) -> Situation:
    return dataclasses.replace(NOTHING, **changes)  # type: ignore[arg-type]


def test_a_warm_spare_comes_first() -> None:
    assert choose_rung(change(warm_spares=1, checkpoint_dir="/ckpt")).rung == kube.NEXT_SPARE


def test_a_spare_that_is_being_made_is_waited_for() -> None:
    rung = choose_rung(change(coming=1, waited_s=299.0, checkpoint_dir="/ckpt"))
    assert rung.rung == WAIT
    assert "300 s" in rung.reason


def test_but_not_for_ever() -> None:
    rung = choose_rung(change(coming=1, waited_s=300.0, checkpoint_dir="/ckpt"))
    assert (rung.rung, rung.checkpoint) == (kube.JIT_CHECKPOINT, "/ckpt")
    assert "no spare came within 300 s" in rung.reason


def test_where_survivors_cannot_save_the_newest_whole_checkpoint_is_taken() -> None:
    found = [Found("/c/20", 20), Found("/c/30", 30, "shard 1 is cut off"), Found("/c/10", 10)]
    rung = choose_rung(change(checkpoint_dir="/c", jit_refused="rank 1 alone held its shard", found=found))
    assert (rung.rung, rung.checkpoint) == (kube.CHECKPOINT, "/c/20")
    for text in ("there is no spare", "rank 1 alone held its shard", "/c/30 is not whole: shard 1 is cut off"):
        assert text in rung.reason


def test_the_same_step_is_not_begun_a_third_time() -> None:
    found = [Found("/c/20", 20), Found("/c/10", 10)]
    rung = choose_rung(change(found=found, restarts=(20, 20, 10)))
    assert rung.checkpoint == "/c/10"
    assert "begun again at step 20 2 times" in rung.reason


def test_a_just_in_time_checkpoint_wears_out_too() -> None:
    assert choose_rung(change(checkpoint_dir="/c", restarts=(40, 40))).rung == FAIL


def test_only_rungs_that_are_allowed_are_tried() -> None:
    rung = choose_rung(change(warm_spares=1, allowed=(kube.CHECKPOINT,), found=[Found("/c/20", 20)]))
    assert rung.rung == kube.CHECKPOINT
    assert "next-spare is not among" in rung.reason


def test_at_the_end_everything_is_said() -> None:
    rung = choose_rung(NOTHING)
    assert rung.rung == FAIL
    for text in ("there is no spare", "names no folder", "there is no checkpoint on disk"):
        assert text in rung.reason
