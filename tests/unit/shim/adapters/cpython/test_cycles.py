"""`itertools.cycle` over a loader, on the CPython that runs the tests; seen on 3.10, 3.11, 3.12 and 3.13."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.failing_guard import FAILING
from support.host_state import take
from torch.utils.data import DataLoader, Dataset

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.cpython import cycles
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import undo
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.capture.walks.rewalk import Rewalk
from torchrelay.shim.data import data_loader, lead_iterators
from torchrelay.shim.data.iterator_replay import IteratorReplay


class Rows(Dataset[Any]):
    def __init__(self, noise: float = 0.0, count: int = 10) -> None:
        self.noise, self.count = noise, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: int) -> torch.Tensor:
        item = torch.tensor([float(place)])
        return item + self.noise * torch.rand(1) if self.noise else item


@pytest.fixture
def draws() -> Iterator[IteratorReplay]:
    made = IteratorReplay()
    made.live = made.recording = True
    originals = {
        name: getattr(data_loader.LoaderIter, name) for name in ("__init__", "__next__", "_reset", "_next_index")
    }
    data_loader.install(made, lambda: True, FAILING)
    yield made
    for name, original in originals.items():
        setattr(data_loader.LoaderIter, name, original)


def cycle(noise: float = 0.0, **more: Any) -> Iterator[Any]:
    return itertools.cycle(DataLoader(Rows(noise), batch_size=2, **more))


def test_this_python_is_known() -> None:
    assert cycles.WORKS


def test_the_place_tells_the_first_pass_from_later_ones() -> None:
    drawn = itertools.cycle(iter("ab"))
    places = []
    for _ in range(6):
        places.append(cycles.place_of(drawn))
        next(drawn)
    assert places == [(0, False, 0), (1, False, 0), (2, False, 0), (2, True, 1), (2, True, 0), (2, True, 1)]


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 10, 13])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_joiners_yields_what_the_lost_ranks_would_have(draws: IteratorReplay, count: int, shuffle: bool) -> None:
    torch.manual_seed(0)
    lost = cycle(shuffle=shuffle)
    assert draws.of_cycle(lost) is not None
    for _ in range(count):
        torch.rand(1)  # as dropout does
        next(lost)
    track = draws.of_cycle(lost)
    place = cycles.place_of(lost)
    assert track is not None
    assert place is not None
    torch.manual_seed(0)
    joiner = itertools.cycle(())
    lead_iterators.lead_cycle(draws, joiner, place, track.record(), DataLoader(Rows(), batch_size=2, shuffle=shuffle))
    assert cycles.place_of(joiner) == place
    if place.kept:
        assert [next(joiner).tolist() for _ in range(12)] == [next(lost).tolist() for _ in range(12)]
        assert draws.of_cycle(joiner) is not None  # it can be replaced in its turn


@pytest.mark.parametrize("count", [0, 1, 4, 5, 7])
@pytest.mark.parametrize("since", [1, 3, 8])
def test_a_rank_that_goes_back_draws_the_same_again(draws: IteratorReplay, count: int, since: int) -> None:
    batches = cycle(shuffle=True)
    for _ in range(count):
        next(batches)
    draws.at_boundary()
    stand = cycles.stand_of(batches)
    assert stand is not None
    first = [next(batches).tolist() for _ in range(since)]
    cycles.put_back(batches, stand)
    draws.rewind()
    assert cycles.place_of(batches) == stand.place
    assert [next(batches).tolist() for _ in range(since)] == first


def test_items_that_are_made_with_the_process_generators_are_not_drawn_again(draws: IteratorReplay) -> None:
    random = cycle(noise=0.1)
    assert draws.of_cycle(random) is not None
    next(random)
    assert draws.of_cycle(random) is not None  # the first draw's generators are in the record
    next(random)
    assert draws.of_cycle(random) is None


def test_one_that_was_drawn_from_before_anybody_looked_or_draws_from_something_else_is_not_known(
    draws: IteratorReplay,
) -> None:
    early = cycle()
    next(early)
    next(early)
    assert draws.of_cycle(early) is None
    assert draws.of_cycle(itertools.cycle([1, 2])) is None


def test_a_loop_over_one_can_be_led_unless_its_items_are_made_at_random(draws: IteratorReplay) -> None:
    plain, random, of_a_list = cycle(), cycle(noise=0.1), itertools.cycle([1, 2])
    for _ in range(3):
        assert (draws.is_random(plain), draws.is_random(of_a_list)) == (False, False)
        draws.is_random(random)
        for drawn in (plain, random, of_a_list):
            next(drawn)
    assert draws.is_random(random)


def test_cycles_below_a_loops_iterator_are_watched_from_the_time_that_it_is_made(draws: IteratorReplay) -> None:
    watched, unwatched = cycle(), cycle()
    loop = enumerate(zip(range(9), map(torch.clone, watched)))
    draws.watch_cycles(loop)
    for _ in range(3):
        next(loop)
        next(unwatched)
    assert not draws.is_random(loop)
    assert draws.led_cycles() == {id(watched)}
    assert draws.is_random(enumerate(unwatched))


def test_what_is_no_longer_in_use_is_let_go(draws: IteratorReplay) -> None:
    one = cycle()
    draws.of_cycle(one)
    draws.forget_cycles({id(one)})
    assert draws.of_cycle(one) is not None
    next(one)
    next(one)
    draws.forget_cycles(set())
    assert draws.of_cycle(one) is None


def test_a_cycle_that_does_not_come_to_its_place_is_refused(draws: IteratorReplay) -> None:
    lost = cycle()
    track = draws.of_cycle(lost)
    assert track is not None
    for _ in range(4):
        next(lost)
    place = cycles.place_of(lost)
    assert place is not None
    with pytest.raises(StateMismatchError, match="does not come to its place"):
        lead_iterators.lead_cycle(
            draws, itertools.cycle(()), place, track.record(), DataLoader(Rows(count=6), batch_size=2)
        )


def test_a_walk_has_its_place_and_a_later_one_sees_it_move() -> None:
    namespace, trees = {"batches": cycle(), "step": 1}, ModuleTrees()
    state = take(namespace, trees)
    assert [node.kind for node in state.nodes] == [Kind.GLOBALS, Kind.SETTINGS, Kind.CYCLE]
    next(namespace["batches"])  # type: ignore[call-overload]  # declared wider than it is here
    later = Rewalk(trees, state, at_gate=False).run([], {"script": namespace})
    assert [node.content.place for node in later.nodes[2:]] == [(1, False, 0)]
    assert later.iterators == [("script.batches (cycle)", namespace["batches"])]


def test_one_over_something_else_is_an_iterator_as_others_are() -> None:
    namespace, trees = {"names": itertools.cycle(["a", "b", "c"])}, ModuleTrees()
    state = take(namespace, trees)
    assert state.nodes[2].kind is Kind.ITERATOR
    assert not state.unknown
    for _ in range(4):
        next(namespace["names"])
        state = Rewalk(trees, state, at_gate=False).run([], {"script": namespace})
    assert not state.unknown
    then = [next(namespace["names"]) for _ in range(4)]
    undo.undo(state)
    assert [next(namespace["names"]) for _ in range(4)] == then == ["b", "c", "a", "b"]
