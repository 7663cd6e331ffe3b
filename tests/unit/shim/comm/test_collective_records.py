from __future__ import annotations

import pytest

from torchrelay.protocol.errors import JournalError, StateMismatchError, UnsupportedError
from torchrelay.shim.comm import collective_records
from torchrelay.shim.comm.collective_records import CollectiveRecords, furthest, without
from torchrelay.shim.comm.finished import FinishedCollective
from torchrelay.shim.journal import payload


def entry(group: str, number: int, name: str = "barrier") -> FinishedCollective:
    return FinishedCollective(name, group, number.to_bytes(2, "big"))


def test_of_each_group_the_log_of_the_member_that_got_furthest_counts() -> None:
    ahead_in_world = [entry("world", 0), entry("left", 0), entry("world", 1)]
    ahead_in_right = [entry("world", 0), entry("right", 0), entry("right", 1)]
    expected = {
        "world": [entry("world", 0), entry("world", 1)],
        "left": [entry("left", 0)],
        "right": [entry("right", 0), entry("right", 1)],
    }
    assert furthest([ahead_in_world, ahead_in_right]) == expected
    assert furthest([ahead_in_right, ahead_in_world]) == expected


def test_a_rank_has_yet_to_do_what_it_has_not_done_itself() -> None:
    finished = {"world": [entry("world", 0), entry("world", 1)], "left": [entry("left", 0)]}
    left = without(finished, [entry("world", 0), entry("left", 0)])
    assert left == {"world": [entry("world", 1)], "left": []}
    assert len(finished["world"]) == 2


def test_groups_are_answered_each_in_its_own_order() -> None:
    records = CollectiveRecords()
    records.others = {"a": [entry("a", 0), entry("a", 1)], "b": [entry("b", 0)]}
    found = [records.answer("barrier", group).results for group in ("a", "b", "a")]
    assert found == [b"\0\0", b"\0\0", b"\0\1"]
    assert len(records.after) == 3
    with pytest.raises(StateMismatchError, match="no other member of group 'b' has finished"):
        records.answer("barrier", "b")


def test_a_joiner_behind_its_gate_is_answered_by_others_and_replays_the_rest_once_it_has_peers() -> None:
    records = CollectiveRecords()
    records.answer_with([entry("a", 9)])
    records.answer_from_others({"a": [entry("a", 0), entry("a", 1)]})
    assert records.answers == [], "what came before the gate is over"
    records.answer("barrier", "a")
    left = records.others_left()
    records.have_peers(left)
    assert (records.answers, records.others) == (None, None)
    assert records.replayed("barrier", "a") == entry("a", 1)
    assert records.replayed("barrier", "a") is None


def test_a_rank_that_goes_forward_is_given_only_what_it_has_not_finished_itself() -> None:
    records = CollectiveRecords()
    records.add(entry("a", 0), after_gate=True)
    records.catch_up({"a": [entry("a", 0), entry("a", 1)]})
    assert records.replay == {"a": [entry("a", 1)]}
    records.begin_after_gate()
    assert (records.after, records.replay) == ([], {})


def test_another_ranks_own_result_answers_nobody_else() -> None:
    records = CollectiveRecords()
    records.replay = {"a": [entry("a", 0, "reduce_scatter_tensor")]}
    with pytest.raises(UnsupportedError, match="one rank's own"):
        records.replayed("reduce_scatter_tensor", "a")
    assert records.replayed("barrier", "b") is None


def test_a_lost_ranks_own_results_are_kept_and_answer_the_one_that_takes_over() -> None:
    kept: list[bytes] = []
    lost = CollectiveRecords(kept.append)
    lost.add(entry("a", 1), after_gate=False)
    assert not kept
    for made in (entry("a", 2), entry("a", 3, "scatter"), entry("b", 4, "reduce"), entry("a", 5)):
        lost.add(made, after_gate=True)
    assert len(kept) == 2  # a barrier's result is with all the others

    records = CollectiveRecords()
    records.own = furthest([payload.load(kept[-1], tuple)])
    records.others = {
        "a": [entry("a", 2), entry("a", 70, "scatter"), entry("a", 5), entry("a", 71, "scatter")],
        "b": [entry("b", 72, "reduce")],
    }
    assert records.answer("barrier", "a") == entry("a", 2)
    assert records.answer("scatter", "a") == entry("a", 3, "scatter")
    assert records.answer("reduce", "b") == entry("b", 4, "reduce")
    assert records.answer("barrier", "a") == entry("a", 5)
    with pytest.raises(UnsupportedError, match="the lost rank had not finished it"):
        records.answer("scatter", "a")


def test_what_is_answered_later_from_the_others_record_is_the_lost_ranks_too() -> None:
    records = CollectiveRecords()
    records.own = {"a": [entry("a", 1), entry("a", 3, "scatter")]}
    records.after = [entry("a", 1)]
    records.replay = {"a": [entry("a", 70, "scatter")]}
    assert records.replayed("scatter", "a") == entry("a", 3, "scatter")


def test_a_full_shared_memory_costs_the_own_results_alone() -> None:
    def full(data: bytes) -> None:
        raise JournalError("no room")

    records = CollectiveRecords(full)
    records.add(entry("a", 3, "scatter"), after_gate=True)
    assert records.after == [entry("a", 3, "scatter")]


def test_an_endless_evaluation_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective_records, "_MAX_AFTER_BYTES", 6)
    records = CollectiveRecords()
    for number in range(5):
        records.add(entry("a", number), after_gate=True)
    assert [e.results is None for e in records.after] == [False, False, False, True, True]
    records.after = []
    records.add(entry("a", 9), after_gate=True)
    assert records.after[0].results is not None


def test_whoever_gets_nothing_of_a_gather_has_nothing_left_to_do_once_another_rank_is_through() -> None:
    records = CollectiveRecords()
    records.replay = {"a": [entry("a", 0, "gather"), entry("a", 1, "gather")]}
    assert records.replayed("gather", "a", without_result=True) == FinishedCollective("gather", "a", None)
    with pytest.raises(UnsupportedError, match="one rank's own"):
        records.replayed("gather", "a")  # the root
    records.others = {"a": [entry("a", 0, "gather_object")]}
    assert records.answer("gather_object", "a", without_result=True) == FinishedCollective("gather_object", "a", None)
    assert [e.name for e in records.after] == ["gather_object"]


def test_a_draw_is_answered_with_what_the_lost_rank_called_in_it_and_nothing_else() -> None:
    records = CollectiveRecords()
    before = [FinishedCollective("barrier", "0", None)]
    records.answers = before
    drawn = FinishedCollective("all_reduce", "0", [])
    with records.answering([drawn]):
        assert records.answer("all_reduce", "0") is drawn
        with pytest.raises(StateMismatchError, match="calls all_reduce where the lost rank did not"):
            records.answer("all_reduce", "0")
    assert records.answers is before
    with pytest.raises(StateMismatchError, match="called all_reduce as it drew"), records.answering([drawn]):
        pass
    assert records.answers is before


def test_what_a_process_does_not_draw_is_left_out() -> None:
    records = CollectiveRecords()
    records.skip(1)  # among real peers
    assert records.answers is None
    records.answers = [FinishedCollective(name, "0", None) for name in ("broadcast", "barrier")]
    records.skip(1)
    assert [entry.name for entry in records.answers] == ["barrier"]
