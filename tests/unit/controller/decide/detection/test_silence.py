from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from torchrelay.controller.config import Policy
from torchrelay.controller.decide.detection.silence import (
    END,
    GIVE_UP,
    NEVER,
    WAIT,
    Silence,
    SilenceVerdict,
    WitnessRank,
    fenced_after_s,
    judge_silence,
)
from torchrelay.controller.decide.protection.copies import choose_keeper

WAITS, TRAINS = WitnessRank(0, True, 2.0), WitnessRank(1, False, 0.1)
SILENCE = Silence("n1", 8.0, False, (2, 3), False, (WAITS, TRAINS), "")


def judged(**changes: Any) -> SilenceVerdict:
    return judge_silence(dataclasses.replace(SILENCE, **changes), Policy())


def test_a_silent_node_is_given_up_when_ranks_elsewhere_wait_for_it() -> None:
    verdict = judged()
    assert verdict == SilenceVerdict(GIVE_UP, "the agent of n1 has been silent for 8.0 s, and rank 0 waits for it")


def test_a_node_whose_connection_is_down_is_given_up_sooner() -> None:
    assert judged(silent_s=3.5).action == WAIT
    assert judged(silent_s=3.5, away=True).action == GIVE_UP
    assert judged(silent_s=2.9, away=True) == SilenceVerdict(WAIT, "")


@pytest.mark.parametrize("witness", [TRAINS, WitnessRank(0, True, 0.5), WitnessRank(0, False, 100.0)])
def test_as_long_as_training_goes_on_silence_ends_nothing(witness: WitnessRank) -> None:
    verdict = judged(silent_s=1000.0, away=True, witnesses=(witness,))
    assert verdict == SilenceVerdict(WAIT, "the agent of n1 is away, but training goes on")


def test_where_nobody_could_tell_more_a_longer_silence_decides() -> None:
    assert judged(witnesses=()).action == WAIT
    assert judged(witnesses=(), silent_s=30.0).action == GIVE_UP


def test_ranks_that_could_train_without_any_of_ours_are_given_up_only_once_their_lease_is_over() -> None:
    fenced_s = fenced_after_s(60.0)
    assert fenced_s > 60.0
    assert judged(witnesses=(), silent_s=fenced_s - 0.1, fenced_after_s=fenced_s).action == WAIT
    assert judged(witnesses=(), silent_s=fenced_s, fenced_after_s=fenced_s).action == GIVE_UP
    assert judged(fenced_after_s=fenced_s).action == GIVE_UP, "a rank of ours waits: nobody passes a gate without it"
    assert fenced_after_s(0.0) == 0.0


def test_in_a_cluster_ranks_that_could_train_without_any_of_ours_are_given_up_only_once_it_says_that_they_are_gone() -> (
    None
):
    never = fenced_after_s(0.0, in_pods=True)
    verdict = judged(witnesses=(), silent_s=1e9, fenced_after_s=never)
    assert verdict.action == WAIT
    assert "given up once its pod is gone from the cluster" in verdict.reason
    assert judged(fenced_after_s=never).action == GIVE_UP, "a rank of ours waits: nobody passes a gate without it"


def test_an_unprotected_job_ends_after_its_grace() -> None:
    because = "ranks 1 have not reached their training loop yet"
    assert judged(unprotected_because=because).action == WAIT
    verdict = judged(unprotected_because=because, silent_s=30.0, away=True)
    assert verdict.action == END
    assert verdict.reason.endswith(because)


def test_a_node_with_all_ranks_cannot_be_replaced() -> None:
    assert judged(all_ranks=True, witnesses=(), silent_s=30.0).action == END


def test_a_machine_with_all_ranks_is_given_up_once_its_lease_is_over() -> None:
    alone: dict[str, Any] = {"all_ranks": True, "witnesses": (), "fenced_after_s": 70.0}
    assert judged(**alone, silent_s=69.0).action == WAIT
    assert judged(**alone, silent_s=70.0).action == GIVE_UP
    assert judged(**{**alone, "fenced_after_s": NEVER}, silent_s=70.0).action == END


def test_a_node_with_spares_alone_is_nobodys_loss() -> None:
    assert judged(ranks=(), silent_s=29.0).action == WAIT
    assert judged(ranks=(), silent_s=30.0) == SilenceVerdict(
        GIVE_UP, "the agent of n1 has been silent for 30.0 s; it had spares only"
    )


def test_copies_are_kept_by_the_next_node_in_the_ring() -> None:
    assert [choose_keeper(n, ("n0", "n1", "n2"), {}) for n in ("n0", "n1", "n2")] == ["n1", "n2", "n0"]
    assert choose_keeper("n1", ("n0",), {}) == "n0"
    assert choose_keeper("n0", ("n0",), {}) == ""


def test_copies_are_kept_on_another_machine_where_there_is_one() -> None:
    machines = {"a0": "m0", "a1": "m0", "a2": "m1", "a3": "m1"}
    kept = [choose_keeper(n, tuple(machines), machines) for n in machines]
    assert kept == ["a2", "a3", "a0", "a1"]
    assert choose_keeper("a0", ("a0", "a1"), machines) == "a1"
