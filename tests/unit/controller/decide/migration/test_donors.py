from __future__ import annotations

from dataclasses import replace

import pytest

from torchrelay.controller.decide.migration.donors import MAX_HELPERS, ChosenDonor, choose_donor, choose_helpers
from torchrelay.controller.decide.migration.stand import Cannot
from torchrelay.protocol.messages import ReplicaCheck, Standing


def at(boundary: int, gates: int, position: str = "body") -> Standing:
    return Standing(1, boundary, gates, position, "", "h", 1)


def check(boundary: int, ddp: str = "", **digests: str) -> ReplicaCheck:
    return ReplicaCheck(boundary, digests, tuple(ddp))


HERE = {0: at(9, 9), 2: at(9, 9)}


def test_equal_contents_at_a_common_boundary_make_a_donor() -> None:
    checks = {0: [check(4, a="1", b="3")], 1: [check(4, a="1", b="2")], 2: [check(4, a="1", b="2", c="9")]}
    donor = choose_donor(1, 9, HERE, checks)
    why = "rank 2 gives its tensors to rank 1: all 2 tensors were bitwise equal after step 4"
    assert donor == ChosenDonor(2, why, compared=4)


def test_the_newest_common_check_counts() -> None:
    equal_once = [check(2, a="1"), check(4, a="1")]
    donor = choose_donor(1, 9, {0: at(9, 9)}, {0: equal_once, 1: [check(2, a="1"), check(4, a="2"), check(6, a="1")]})
    assert isinstance(donor, Cannot)
    assert "differed after step 4, such as a" in donor.reason


def test_equality_by_initialisation_proves_nothing() -> None:
    checks = {0: [check(0, a="1", b="1")], 1: [check(0, a="1", b="1")]}
    assert isinstance(choose_donor(1, 9, {0: at(9, 9)}, checks), Cannot)


@pytest.mark.parametrize("target", [0, 1, 9])
def test_what_a_data_parallel_wrapper_keeps_equal_counts_until_contents_were_compared(target: int) -> None:
    checks = {0: [check(0, "ab", a="1", b="1")], 1: [check(0, "ab", a="1", b="1")]}
    donor = choose_donor(1, target, {0: at(target, target)}, checks)
    assert isinstance(donor, ChosenDonor)


def test_a_rank_that_died_before_its_first_check_takes_from_who_shares_everything() -> None:
    assert isinstance(choose_donor(1, 0, {0: at(0, 0)}, {0: [check(0, "a", a="1")]}), ChosenDonor)
    assert isinstance(choose_donor(1, 0, {0: at(0, 0)}, {0: [check(0, "a", a="1", b="1")]}), Cannot)
    assert isinstance(choose_donor(1, 0, {0: at(0, 0)}, {}), Cannot)


@pytest.mark.parametrize("lost_has_come", [False, True])
def test_a_wrapper_that_has_not_kept_contents_equal_before_is_not_believed_in_the_next_loop(
    lost_has_come: bool,
) -> None:
    """A script may call the module inside of its wrapper: no gradient is averaged then."""
    before = {rank: [check(8, "ab", a=str(rank), b="1"), check(9, "ab", a=str(rank), b="1")] for rank in (0, 1)}
    next_loop = {rank: replace(check(10, "ab", a=str(rank), b="1"), since=10) for rank in (0, 1)}
    checks = {0: [*before[0], next_loop[0]], 1: [*before[1], *([next_loop[1]] if lost_has_come else [])]}
    donor = choose_donor(1, 11, {0: at(11, 11)}, checks)
    assert isinstance(donor, Cannot)
    newest = 10 if lost_has_come else 9
    assert f"a differed after step {newest}: the data parallel wrapper around it does not keep it equal" in donor.reason


def test_a_wrapper_that_has_kept_contents_equal_before_is_believed_in_the_next_loop() -> None:
    before = [check(9, "a", a="1")]
    donor = choose_donor(1, 11, {0: at(11, 11)}, {0: [*before, replace(check(10, "a", a="2"), since=10)], 1: before})
    assert isinstance(donor, ChosenDonor)


@pytest.mark.parametrize("here", [at(1, 1, "head"), at(0, 1)])
def test_a_wrapper_that_the_first_update_went_past_is_not_believed(here: Standing) -> None:
    checks = {rank: [check(0, "ab", a="1", b="1")] for rank in (0, 1)}
    donor = choose_donor(1, 1, {0: replace(here, not_averaged=("a",))}, checks)
    assert isinstance(donor, Cannot)
    assert "the latest update of a went past the data parallel wrapper around it" in donor.reason


def test_what_an_update_went_past_does_not_matter_where_contents_speak() -> None:
    before_it = {rank: [check(0, "a", a="1")] for rank in (0, 1)}
    assert isinstance(choose_donor(1, 0, {0: replace(at(0, 1), not_averaged=("a",))}, before_it), ChosenDonor)
    after_it = {rank: [check(0, "a", a="1"), check(1, "a", a="2")] for rank in (0, 1)}
    assert isinstance(choose_donor(1, 1, {0: replace(at(1, 1), not_averaged=("a",))}, after_it), ChosenDonor)


def kept(boundary: int, *paths: str, **digests: str) -> ReplicaCheck:
    return ReplicaCheck(boundary, digests, paths)


def test_stages_of_a_pipeline_have_equal_paths_and_are_no_replicas_of_each_other() -> None:
    """Each stage is data parallel with its like: ranks 0 and 2, ranks 1 and 3."""
    checks = {rank: [kept(0, "w@0,2" if rank % 2 == 0 else "w@1,3", w="1")] for rank in range(4)}
    here = {rank: at(1, 1) for rank in (0, 1, 3)}
    donor = choose_donor(2, 1, here, checks)
    assert isinstance(donor, ChosenDonor)
    assert donor.rank == 0
    assert isinstance(choose_donor(2, 1, {1: at(1, 1), 3: at(1, 1)}, checks), Cannot)
    assert isinstance(choose_donor(2, 0, {1: at(0, 0)}, {1: checks[1]}), Cannot)


def test_shards_that_are_replicated_are_kept_equal_if_they_were_equal_once() -> None:
    equal = {0: [kept(0, "w@=0,2", w="1")], 2: [kept(0, "w@=0,2", w="1")]}
    assert isinstance(choose_donor(2, 1, {0: at(1, 1)}, equal), ChosenDonor)
    differing = {0: [kept(0, "w@=0,2", w="1")], 2: [kept(0, "w@=0,2", w="7")]}
    assert isinstance(choose_donor(2, 1, {0: at(1, 1)}, differing), Cannot)
    assert isinstance(choose_donor(2, 1, {0: at(1, 1)}, {0: equal[0]}), Cannot)


def test_equality_before_the_first_step_is_enough_to_do_that_step_again() -> None:
    checks = {0: [check(0, a="1")], 1: [check(0, a="1")]}
    assert isinstance(choose_donor(1, 0, {0: at(0, 0)}, checks), ChosenDonor)
    assert isinstance(choose_donor(1, 1, {0: at(1, 1)}, checks), Cannot)


def test_only_ranks_that_have_the_targets_tensors_can_give_them() -> None:
    checks = {r: [check(4, a="1")] for r in range(3)}
    donor = choose_donor(1, 9, {0: at(8, 8, "gate"), 2: at(8, 9, "after")}, checks)
    assert isinstance(donor, ChosenDonor)
    assert donor.rank == 2
    nobody = choose_donor(1, 9, {0: at(8, 8, "gate")}, checks)
    assert nobody == Cannot("no rank that is left holds the tensors as they were after step 9")


def test_who_is_at_the_target_already_is_preferred_then_the_lowest_rank() -> None:
    checks = {r: [check(4, a="1")] for r in range(4)}
    standings = {0: at(8, 9, "after"), 2: at(9, 9), 3: at(9, 9)}
    donor = choose_donor(1, 9, standings, checks)
    assert isinstance(donor, ChosenDonor)
    assert donor.rank == 2
    other = choose_donor(1, 9, standings, checks, busy=[2])
    assert isinstance(other, ChosenDonor)
    assert other.rank == 3


def test_a_finished_rank_that_wrote_after_its_last_update_gives_nothing() -> None:
    checks = {r: [check(4, a="1")] for r in range(2)}
    finished = replace(at(8, 9, "finished"), late={"average.weight": 1})
    donor = choose_donor(1, 9, {0: finished}, checks)
    assert isinstance(donor, Cannot)
    assert "average.weight" in donor.reason
    assert isinstance(choose_donor(1, 9, {0: replace(finished, late={})}, checks), ChosenDonor)


def test_checks_from_before_the_training_loop_that_runs_prove_nothing() -> None:
    old = [check(4, a="1"), check(8, a="1")]
    anew = replace(check(9, a="1"), since=9)
    checks = {0: [*old, anew], 1: old}
    assert isinstance(choose_donor(1, 10, {0: at(10, 10)}, checks), Cannot)
    # At the loop's first boundary itself contents are known; equality by initialisation holds for no later one.
    checks = {0: [*old, anew], 1: [*old, anew]}
    assert isinstance(choose_donor(1, 9, {0: at(9, 9)}, checks), ChosenDonor)
    assert isinstance(choose_donor(1, 10, {0: at(10, 10)}, checks), Cannot)
    later = replace(check(10, a="1"), since=9)
    checks = {0: [*old, anew, later], 1: [*old, anew, later]}
    assert isinstance(choose_donor(1, 12, {0: at(12, 12)}, checks), ChosenDonor)


def test_what_a_wrapper_of_an_earlier_loop_kept_equal_counts_no_more() -> None:
    old, anew = check(8, "a", a="1"), replace(check(9, a="2"), since=9)
    assert isinstance(choose_donor(1, 10, {0: at(10, 10)}, {0: [old], 1: [old]}), ChosenDonor)
    assert isinstance(choose_donor(1, 10, {0: at(10, 10)}, {0: [old, anew], 1: [old]}), Cannot)


SAME = {rank: [check(4, a="1")] for rank in range(6)}


def test_all_that_hold_the_same_give_at_once() -> None:
    donor = choose_donor(1, 9, {0: at(9, 9), 2: at(9, 9), 3: at(9, 9)}, SAME)
    assert isinstance(donor, ChosenDonor)
    assert (donor.rank, donor.helpers) == (0, (2, 3))
    assert donor.reason.startswith("ranks 0, 2 and 3, which hold the same, give their tensors to rank 1: all 1 tensors")


@pytest.mark.parametrize(
    "elsewhere",
    [
        pytest.param(at(8, 9, "after"), id="behind its gate and not at the next head"),
        pytest.param(replace(at(9, 9), late={"w": 1}), id="it has written something since"),
        pytest.param(replace(at(9, 9), log_length=2), id="further in the step"),
        pytest.param(at(9, 9, "finished"), id="at the end"),
    ],
)
def test_who_stands_elsewhere_does_not_help(elsewhere: Standing) -> None:
    donor = choose_donor(1, 9, {0: at(9, 9), 2: elsewhere}, SAME)
    why = "rank 0 gives its tensors to rank 1: all 1 tensors were bitwise equal after step 4"
    assert donor == ChosenDonor(0, why, compared=4)


def test_who_holds_something_else_does_not_help() -> None:
    donor = choose_donor(1, 9, {0: at(9, 9), 2: at(9, 9)}, {**SAME, 2: [check(4, a="2")]})
    assert isinstance(donor, ChosenDonor)
    assert donor.helpers == ()


def test_help_comes_from_nodes_whose_links_are_free() -> None:
    here = {rank: at(9, 9) for rank in (0, 2, 3, 4, 5)}
    nodes = {0: "a", 2: "a", 3: "b", 4: "b", 5: "c"}
    assert choose_helpers(0, [2, 3, 4, 5], here, nodes=nodes) == (3, 5, 2)
    assert choose_helpers(0, [2, 3, 4, 5], here, busy=[3], nodes=nodes) == (4, 5, 2)
    assert len(choose_helpers(0, [2, 3, 4, 5], here)) == MAX_HELPERS


def test_ranks_that_average_now_and_then_hold_the_same_at_some_boundaries_only() -> None:
    """Equal at 8 by chance of the numbers, apart at 9 and at 7: whoever is lost at 10 has what nobody else has."""
    checks = {rank: [check(1, w="a"), check(3, w=str(rank)), check(8, w="b")] for rank in range(2)}
    donor = choose_donor(1, 10, {0: at(10, 10)}, checks)
    assert isinstance(donor, Cannot)
    assert "w was equal after step 8 and not after step 3" in donor.reason
    kept_equal = {rank: [check(3, "w", w=str(rank)), check(8, "w", w="b")] for rank in range(2)}
    assert isinstance(choose_donor(1, 10, {0: at(10, 10)}, kept_equal), ChosenDonor)


def carrying(boundary: int, *carried: str, **digests: str) -> ReplicaCheck:
    return replace(check(boundary, **digests), carried=carried)


CARRIED = {
    0: [check(2, a="1", b="5"), carrying(4, "b", a="2", b="6")],
    1: [check(2, a="1", b="7"), carrying(4, "b", a="2", b="8")],
}


def test_what_a_lost_rank_has_copied_need_not_be_held_by_its_donor() -> None:
    donor = choose_donor(1, 9, {0: at(9, 9)}, CARRIED)
    assert isinstance(donor, ChosenDonor)
    assert (donor.rank, donor.carried) == (0, ("b",))
    assert "of 2 tensors all but 1, which are copied in each step, were bitwise equal" in donor.reason


def test_optimizer_state_that_the_donor_has_for_itself_is_named() -> None:
    shared, theirs = {"a": "1"}, {"a": "1", "optimizer0.0.mean": "2", "module1.weight": "3"}
    later = {**theirs, "optimizer0.1.mean": "4"}
    checks = {1: [ReplicaCheck(4, shared)], 2: [ReplicaCheck(4, theirs), ReplicaCheck(8, later)]}
    donor = choose_donor(1, 9, {2: at(9, 9)}, checks)
    assert isinstance(donor, ChosenDonor)
    assert (donor.compared, donor.lacking) == (4, ("optimizer0.0.mean",))


def test_the_copy_is_left_alone_where_a_rank_holds_all() -> None:
    checks = {rank: [carrying(4, "b", a="1", b="2")] for rank in (0, 1)}
    donor = choose_donor(1, 9, {0: at(9, 9)}, checks)
    assert isinstance(donor, ChosenDonor)
    assert donor.carried == ()


def test_in_the_first_step_a_rank_that_has_copied_all_it_has_can_be_replaced() -> None:
    """A wrapper keeps none of it equal, and it is the first step."""
    all_of_it = {rank: [carrying(0, "a", "b", a=str(rank), b="2")] for rank in (0, 1)}
    donor = choose_donor(1, 0, {0: at(0, 0)}, all_of_it)
    assert isinstance(donor, ChosenDonor)
    assert (set(donor.carried), "rank 1 has copied all 2 of its tensors" in donor.reason) == ({"a", "b"}, True)
    a_part = {rank: [carrying(0, "a", a=str(rank), b=str(rank))] for rank in (0, 1)}
    assert isinstance(choose_donor(1, 0, {0: at(0, 0)}, a_part), Cannot)


def test_a_copy_from_after_the_boundary_where_all_meet_counts_for_nothing() -> None:
    assert isinstance(choose_donor(1, 3, {0: at(3, 3)}, CARRIED), Cannot)


def test_the_newest_check_says_what_is_carried() -> None:
    checks = {rank: [*known, check(8, a="3", b=str(rank))] for rank, known in CARRIED.items()}
    assert isinstance(choose_donor(1, 9, {0: at(9, 9)}, checks), Cannot)


def test_where_no_new_process_can_take_the_copy_it_counts_for_nothing() -> None:
    assert isinstance(choose_donor(1, 9, {0: at(9, 9)}, CARRIED, with_carried=False), Cannot)


def test_a_carried_tensor_does_not_excuse_another_one() -> None:
    checks = {rank: [carrying(4, "b", a=str(rank), b=str(rank))] for rank in (0, 1)}
    assert isinstance(choose_donor(1, 9, {0: at(9, 9)}, checks), Cannot)
    apart_before = {rank: [check(2, a=str(rank)), carrying(4, "b", a="1", b=str(rank))] for rank in (0, 1)}
    assert isinstance(choose_donor(1, 9, {0: at(9, 9)}, apart_before), Cannot)


def test_a_rank_at_the_end_that_has_written_to_what_is_carried_can_give_the_rest() -> None:
    wrote = replace(at(9, 9, "finished"), late={"b": 2})
    assert isinstance(choose_donor(1, 9, {0: wrote}, CARRIED), ChosenDonor)
    assert isinstance(choose_donor(1, 9, {0: replace(wrote, late={"a": 1})}, CARRIED), Cannot)


def test_ranks_that_have_own_tensors_do_not_give_at_the_same_time() -> None:
    """What has come in the end is compared with what one of them holds."""
    checks = {**CARRIED, 2: [check(2, a="1", b="9"), carrying(4, "b", a="2", b="9")]}
    donor = choose_donor(1, 9, {0: at(9, 9), 2: at(9, 9)}, checks)
    assert isinstance(donor, ChosenDonor)
    assert donor.helpers == ()
    alike = {**checks, 2: CARRIED[0]}
    donor = choose_donor(1, 9, {0: at(9, 9), 2: at(9, 9)}, alike)
    assert isinstance(donor, ChosenDonor)
    assert donor.helpers == (2,)


def test_contents_of_two_heads_with_one_number_say_nothing_of_each_other() -> None:
    """An average is written between two training loops: one rank has told of the head behind that, the other one not yet."""
    before, behind = (replace(check(9, a="1", ema=ema), place=place) for ema, place in (("1", "first"), ("2", "next")))
    equal = [check(5, a="0", ema="0")]
    told_of_both = {0: [*equal, behind], 1: [*equal, before]}
    assert isinstance(choose_donor(1, 9, {0: at(9, 9)}, told_of_both), ChosenDonor)
    assert isinstance(
        choose_donor(1, 9, {0: at(9, 9)}, {0: [*equal, replace(behind, place="first")], 1: [*equal, before]}), Cannot
    )


def test_a_donor_that_is_in_the_next_loop_gives_only_by_names_that_mean_what_they_meant() -> None:
    lost = [check(4, m1="1"), check(5, m1="2")]
    begins = replace(check(9, m1="3"), since=9)
    assert isinstance(choose_donor(1, 9, HERE, {0: [*lost, begins], 1: lost}), ChosenDonor)
    for other in (replace(begins, renamed={"m1": "m0"}), replace(begins, fresh=("m1",))):
        assert isinstance(choose_donor(1, 9, HERE, {0: [*lost, other], 1: lost}), Cannot)
        still_has_them = {rank: replace(standing, has_before=True) for rank, standing in HERE.items()}
        assert isinstance(choose_donor(1, 9, still_has_them, {0: [*lost, other], 1: lost}), ChosenDonor)
