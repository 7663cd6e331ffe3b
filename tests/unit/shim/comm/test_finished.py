from __future__ import annotations

import pickle

import pytest
import torch

from torchrelay.protocol.errors import StateMismatchError, UnsupportedError
from torchrelay.shim.comm import collective_records, finished
from torchrelay.shim.comm.collective_call import CollectiveCall
from torchrelay.shim.comm.collective_records import CollectiveRecords, give, lasts
from torchrelay.shim.comm.finished import FinishedCollective, LargeResults, results_of


@pytest.fixture(autouse=True)
def small_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finished, "MAX_RECORDED_BYTES", 16)


def large(content: float = 1.0, before: float = 0.0) -> LargeResults:
    results = results_of([torch.full((5,), content)], for_others=True, before=[torch.full((5,), before)])
    assert isinstance(results, LargeResults)
    return results


def written(results: LargeResults) -> LargeResults:
    made: LargeResults = pickle.loads(pickle.dumps(results))
    return made


def test_of_large_results_the_digests_alone_are_written_down() -> None:
    results = results_of([torch.zeros(1 << 16)], for_others=True)
    assert len(pickle.dumps(results)) < 300
    assert written(results).tensors is None


def test_large_results_that_nobody_asks_for_are_not_kept() -> None:
    assert results_of([torch.zeros(5)], for_others=False) is None
    assert results_of([torch.zeros(4)], for_others=False) is not None


def test_who_has_the_same_already_needs_nothing() -> None:
    same = torch.ones(5)
    written(large()).put("broadcast", [same])
    assert same.tolist() == [1.0] * 5


def test_who_has_something_else_and_is_given_nothing_says_so() -> None:
    with pytest.raises(UnsupportedError, match="broadcast after the optimizer step: its result is too large"):
        written(large()).put("broadcast", [torch.zeros(5)])


def test_what_a_donor_gives_is_put_into_the_same_call() -> None:
    donor = CollectiveRecords()
    donor.add(FinishedCollective("barrier", "a", []), after_gate=True)
    donor.add(FinishedCollective("broadcast", "a", large()), after_gate=True)
    others = {"a": [donor.after[0], FinishedCollective("broadcast", "a", written(donor.after[1].results))]}
    give(others, donor.to_give())
    here = torch.zeros(5)
    call = CollectiveCall("broadcast", "a", lambda: None, here, objects=False)
    assert call.put(others["a"][1]) == [here]
    assert here.tolist() == [1.0] * 5
    assert others["a"][1].results.build("broadcast")[0].tolist() == [1.0] * 5


def test_what_is_not_what_was_recorded_is_refused() -> None:
    results = written(large())
    give({"a": [FinishedCollective("broadcast", "a", results)]}, {"collective.a.0.0": torch.full((5,), 3.0)})
    with pytest.raises(StateMismatchError, match="not what they had recorded"):
        results.put("broadcast", [torch.zeros(5)])


def test_the_script_may_write_to_its_tensors_as_long_as_they_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, kept in ((20, ["collective.a.0.0"]), (19, [])):
        monkeypatch.setattr(collective_records, "_MAX_AFTER_BYTES", limit)
        records, mean = CollectiveRecords(), torch.ones(5)
        entry = FinishedCollective("all_reduce", "a", results_of([mean], for_others=True))
        records.add(entry, after_gate=True)
        assert records.to_give().keys() == {"collective.a.0.0"}
        mean /= 2
        assert [*records.to_give()] == kept
        assert lasts(records.after[0], 2) == bool(kept)


def test_records_of_set_up_hold_on_to_no_tensor() -> None:
    records = CollectiveRecords()
    records.add(FinishedCollective("broadcast", "a", large()), after_gate=True)
    assert [entry.results for entry in records.log] == [None]


@pytest.mark.parametrize(("before", "expected"), [(1.0, True), (0.0, False)], ids=["drawn alike", "drawn differently"])
def test_a_new_model_that_is_too_large_to_be_copied_lasts_where_all_ranks_draw_it_alike(
    before: float, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collective_records, "_MAX_AFTER_BYTES", 0)
    records = CollectiveRecords()
    records.add(FinishedCollective("_broadcast_coalesced", "a", large(before=before)), after_gate=True)
    assert lasts(records.after[0], 2) is expected


@pytest.mark.parametrize(("before", "members", "expected"), [(0.0, 2, True), (0.0, 3, False), (1.0, 3, True)])
def test_nobody_gives_tensors_to_a_survivor_that_was_interrupted(before: float, members: int, expected: bool) -> None:
    results = large(before=before)
    results.keep()
    assert lasts(FinishedCollective("broadcast", "a", results), members) is expected


def test_what_was_not_kept_does_not_last_where_others_would_need_it() -> None:
    assert not lasts(FinishedCollective("all_gather_object", "a", None), 2)
    assert lasts(FinishedCollective("scatter", "a", None), 2)  # one rank's own: said before
    assert lasts(FinishedCollective("barrier", "a", []), 2)
