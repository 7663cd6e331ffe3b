"""What a joiner's own update has left, put right by what a donor tells."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest
import torch
from support.host_state import take

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.records.effects import Effect, Way
from torchrelay.shim.capture.values import small
from torchrelay.shim.join import own_update
from torchrelay.shim.join.own_update import OwnUpdate

WAY = ("script", "script.holder.norm")


@pytest.fixture(autouse=True)
def compilations(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Say how much of the script torch has compiled: what other tests have compiled does not count."""

    def are(count: int) -> None:
        monkeypatch.setattr(own_update.dynamo, "compilations", lambda: count)

    are(0)
    return are


class Holder:
    def __init__(self) -> None:
        self.norm, self.count = 1.0, 0
        self.momentum = torch.zeros(2)


class Joiner:
    def __init__(self) -> None:
        self.model, self.holder = torch.nn.Linear(2, 1), Holder()
        self.model.weight.grad = torch.ones(1, 2)
        self.names: dict[str, Any] = {"model": self.model, "holder": self.holder}

    def goes_through(
        self,
        update: Callable[[Joiner], object],
        given: Mapping[Way, Effect] | None,
        changed_before: Collection[tuple[Way, bool]] | None = None,
    ) -> Holder:
        own = OwnUpdate(take(self.names))
        try:
            update(self)
        finally:
            own.done()
        known = [(way, True) for way in given or ()] if changed_before is None else changed_before
        own.put_right(take(self.names), given, known)
        return self.holder


def reads(joiner: Joiner) -> None:
    assert joiner.model.weight.grad is not None
    joiner.holder.norm = float(joiner.model.weight.grad.norm())


def counts(joiner: Joiner) -> None:
    joiner.holder.count += 1


def adds_up(joiner: Joiner) -> None:
    assert joiner.model.weight.grad is not None
    joiner.holder.momentum.add_(joiner.model.weight.grad[0])


def reads_nothing(joiner: Joiner) -> None:
    joiner.holder.norm = 5.0


def told(before: float = 1.0, after: float = 7.0) -> dict[Way, Effect]:
    return {WAY: Effect((before,), (after,))}


def test_a_number_that_was_read_from_gradients_is_the_donors() -> None:
    assert Joiner().goes_through(reads, told()).norm == 7.0


def test_what_does_not_depend_on_them_is_left_as_it_is() -> None:
    assert Joiner().goes_through(reads_nothing, told()).norm == 5.0
    assert Joiner().goes_through(reads_nothing, None).norm == 5.0


def test_compiled_code_is_not_watched_so_all_that_it_leaves_is_the_donors(compilations: Callable[[int], None]) -> None:
    compilations(1)
    assert Joiner().goes_through(reads_nothing, told()).norm == 7.0


def test_a_count_is_right_beside_numbers_that_were_read() -> None:
    def both(joiner: Joiner) -> None:
        counts(joiner)
        float(joiner.model.weight.detach().sum())

    assert Joiner().goes_through(both, None).count == 1


@pytest.mark.parametrize("given", [None, {}, told(before=2.0)])
def test_nobody_goes_on_with_a_number_that_no_other_rank_has(given: dict[Way, Effect] | None) -> None:
    with pytest.raises(StateMismatchError, match=r"holder\.norm .* no other rank has the same"):
        Joiner().goes_through(reads, given)


def test_that_both_had_the_same_says_nothing_where_no_update_had_changed_it() -> None:
    with pytest.raises(StateMismatchError, match=r"holder\.norm .* no other rank has the same"):
        Joiner().goes_through(reads, told(), changed_before=[(WAY, False)])


def test_what_went_away_with_its_holder_is_unknown_where_a_number_may_have_decided() -> None:
    def forgets(joiner: Joiner) -> None:
        del joiner.names["holder"]

    def decides(joiner: Joiner) -> None:
        reads(joiner)
        forgets(joiner)

    Joiner().goes_through(forgets, None)
    with pytest.raises(StateMismatchError, match="holder"):
        Joiner().goes_through(decides, None)


def test_what_each_update_makes_anew_is_the_donors_where_earlier_ones_have_made_it_too() -> None:
    """As a scaler of gradients does with what it finds of infinite ones."""
    way = ("script", "script.holder.found")
    given = {way: Effect((), (small.take(torch.zeros(1)),))}

    def finds(joiner: Joiner) -> None:
        assert joiner.model.weight.grad is not None
        joiner.holder.found = joiner.model.weight.grad.sum(dim=1)  # type: ignore[attr-defined]  # made here

    joiner = Joiner()
    joiner.goes_through(finds, given, changed_before=[(way, False)])
    assert joiner.holder.found.tolist() == [0]  # type: ignore[attr-defined]  # the same
    with pytest.raises(StateMismatchError, match="found"):
        Joiner().goes_through(finds, given, changed_before=())


def test_a_small_tensor_is_the_donors_where_gradients_are_in_it() -> None:
    way = ("script", "script.holder.momentum")
    with pytest.raises(StateMismatchError, match="momentum"):
        Joiner().goes_through(adds_up, None)
    before, after = take({"holder": Holder()}), Holder()
    after.momentum.fill_(3)
    content = [
        next(node.content for node in state.nodes if node.obj is not None and isinstance(node.obj, torch.Tensor))
        for state in (before, take({"holder": after}))
    ]
    given = {way: Effect((content[0],), (content[1],))}
    assert Joiner().goes_through(adds_up, given).momentum.tolist() == [3, 3]


def test_what_the_donor_has_changed_and_this_process_has_not_is_the_donors_where_a_number_may_have_decided() -> None:
    def decides(joiner: Joiner) -> None:
        assert joiner.model.weight.grad is not None
        if joiner.model.weight.grad.sum() > 100:
            joiner.holder.norm = 7.0

    assert Joiner().goes_through(decides, told()).norm == 7.0
    assert Joiner().goes_through(counts, told()).norm == 1.0


def ratios(joiner: Joiner, optimizer: torch.optim.Optimizer, ratio: Any) -> None:
    """As LAMB keeps them: a whole number where a norm is zero, and else a tensor."""
    float(joiner.model.weight.detach().sum())
    optimizer.state[joiner.model.weight]["ratio"] = ratio


def with_ratio(ratio: Any) -> tuple[Joiner, torch.optim.Optimizer]:
    joiner = Joiner()
    optimizer = torch.optim.SGD([joiner.model.weight])
    optimizer.state[joiner.model.weight]["ratio"] = ratio
    joiner.names["optimizer"] = optimizer
    return joiner, optimizer


def test_a_number_in_the_place_of_a_tensor_that_the_donor_has_given_is_no_question() -> None:
    joiner, optimizer = with_ratio(1)
    own = OwnUpdate(take(joiner.names))
    ratios(joiner, optimizer, 2.5)
    own.done()
    own.put_right(take(joiner.names), {}, (), {"optimizer0.0.ratio"})
    with pytest.raises(StateMismatchError, match="ratio"):
        own.put_right(take(joiner.names), {}, ())


def test_a_tensor_in_the_place_of_a_number_that_the_donor_has_makes_room_for_it() -> None:
    joiner, optimizer = with_ratio(1)
    way = ("script", "script.optimizer.state[(0, 'ratio')]")
    given = {way: Effect((1,), (1,))}
    joiner.goes_through(lambda joiner: ratios(joiner, optimizer, torch.ones(())), given)
    (ratio,) = optimizer.state[joiner.model.weight].values()
    assert type(ratio) is int
    assert ratio == 1


def test_counts_of_steps_that_an_optimizer_reads_say_nothing_of_gradients() -> None:
    joiner = Joiner()
    optimizer = torch.optim.Adam(joiner.model.parameters())
    optimizer.step()
    joiner.names["optimizer"] = optimizer

    def steps(joiner: Joiner) -> None:
        optimizer.step()
        joiner.holder.norm = 5.0

    assert joiner.goes_through(steps, None).norm == 5.0


def put_right_with(given: Mapping[Way, Effect], *, is_own: bool) -> Holder:
    """Of a joiner whose update has read a gradient; no earlier update of the lost rank is known."""
    joiner = Joiner()
    own = OwnUpdate(take(joiner.names))
    reads(joiner)
    own.done()
    own.put_right(take(joiner.names), given, (), is_own=is_own)
    return joiner.holder


def test_what_the_lost_ranks_own_update_has_left_is_taken_as_it_is() -> None:
    """Another value before, and no earlier update that is known to have changed it, make no difference."""
    for given in (told(), told(before=2.0)):
        assert put_right_with(given, is_own=True).norm == 7.0
        with pytest.raises(StateMismatchError, match="no other rank has the same"):
            put_right_with(given, is_own=False)


def test_of_what_the_lost_ranks_own_update_does_not_tell_nothing_is_made_up() -> None:
    with pytest.raises(StateMismatchError, match="no other rank has the same"):
        put_right_with({}, is_own=True)
    with pytest.raises(StateMismatchError, match="no other rank has the same"):
        put_right_with({WAY: Effect((1.0,), ())}, is_own=True)
