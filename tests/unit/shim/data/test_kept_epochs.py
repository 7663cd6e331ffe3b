"""Ranks that go back to before an epoch of kept workers began. Seen on torch 2.13."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from unit.shim.capture.iteration.test_kept_workers import Unknowable, draws, loader_of, values

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.data.iterator_replay import IteratorReplay

__all__ = ["draws"]

BATCHES = 4
Attempt = Callable[[], Any]


def loop(loader: DataLoader[Any], taken: int) -> Iterator[Any]:
    """What a step draws before it fails, `taken` batches into an epoch."""
    iterator = iter(loader)
    for _ in range(taken):
        yield next(iterator)


def epochs(loader: DataLoader[Any], count: int) -> list[Any]:
    return [values(loader) for _ in range(count)]


def undisturbed(count: int, **options: Any) -> list[Any]:
    torch.manual_seed(5)
    return epochs(loader_of(**options), count)


def go_back(draws: IteratorReplay, state: torch.Tensor) -> None:
    draws.rewind()
    torch.set_rng_state(state)


@pytest.mark.parametrize("taken", [0, 1, 4])
def test_a_first_epoch_begins_again_with_other_workers(draws: IteratorReplay, taken: int) -> None:
    expected = undisturbed(3)
    torch.manual_seed(5)
    loader = loader_of()
    draws.at_boundary()
    before = torch.get_rng_state()
    for _ in range(2):
        assert values(loop(loader, taken)) == expected[0][:taken]
        go_back(draws, before)
    iterator = iter(loader)
    first = [next(iterator)]
    draws.at_boundary()
    assert values(first) + values(iterator) == expected[0]
    assert epochs(loader, 2) == expected[1:]


@pytest.mark.parametrize("taken", [0, 1, 4])
@pytest.mark.parametrize(
    "around", [iter, lambda loader: (x for _, x in enumerate(loader)), lambda loader: map(list, loader)]
)
def test_a_later_epoch_begins_again_with_other_workers(
    draws: IteratorReplay, around: Callable[[Any], Iterator[Any]], taken: int
) -> None:
    """A step that takes its batches itself, whatever is around the loader."""
    expected = [batch for epoch in undisturbed(4) for batch in epoch]
    torch.manual_seed(5)
    loader = loader_of()
    list(loader)
    stream = around(loader)
    started = [draws.draw(stream, next) for _ in range(BATCHES)]
    draws.at_boundary()
    before, held = torch.get_rng_state(), stream

    def step() -> list[Any]:
        nonlocal stream
        stream, found = held, []
        while len(found) < taken:
            try:
                found.append(draws.draw(stream, next))
            except StopIteration:
                stream = around(loader)
        return found

    for _ in range(2):
        assert asked(step()) == expected[8 : 8 + taken]
        go_back(draws, before)
    found = asked(step())
    draws.at_boundary()
    found += asked(list(stream)) if taken else asked(list(around(loader)))
    assert asked(started) + found == expected[4:12]
    assert [b for e in epochs(loader, 1) for b in e] == expected[12:]


def asked(batches: list[Any]) -> list[Any]:
    return [[x.tolist() for x in batch] for batch in batches]


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def test_one_that_a_generator_of_the_step_has_begun_is_begun_by_the_next_generator(draws: IteratorReplay) -> None:
    """Such as `tqdm` around the loader."""
    expected = undisturbed(2)
    torch.manual_seed(5)
    loader = loader_of()
    draws.at_boundary()
    before = torch.get_rng_state()
    for _ in range(2):
        stream = endless(loader)
        assert values(draws.draw(stream, next) for _ in range(2)) == expected[0][:2]
        go_back(draws, before)
    stream = endless(loader)
    assert values(draws.draw(stream, next) for _ in range(8)) == expected[0] + expected[1]


def test_a_generator_from_before_the_boundary_goes_on_where_it_is(draws: IteratorReplay) -> None:
    """What it has yielded comes again from the record, and its epoch goes on."""
    expected = undisturbed(1)
    torch.manual_seed(5)
    stream = endless(loader_of())
    draws.at_boundary()
    before = torch.get_rng_state()
    for taken in (1, 3):
        assert values(draws.draw(stream, next) for _ in range(taken)) == expected[0][:taken]
        go_back(draws, before)
    assert values(draws.draw(stream, next) for _ in range(4)) == expected[0]


def test_where_it_begins_the_next_epoch_itself_nobody_can_tell_whether_that_is_done_again(
    draws: IteratorReplay,
) -> None:
    stream = endless(loader_of())
    draws.at_boundary()
    draws.draw(stream, next)
    draws.rewind()
    for _ in range(BATCHES):
        draws.draw(stream, next)
    with pytest.raises(StateMismatchError, match="cannot be begun again"):
        draws.draw(stream, next)


def test_the_second_of_two_generators_does_not_begin_what_the_first_one_has_begun(draws: IteratorReplay) -> None:
    loader = loader_of()
    one, other = endless(loader), endless(loader)
    draws.at_boundary()
    draws.draw(one, next)
    draws.rewind()
    draws.draw(one, next)
    with pytest.raises(StateMismatchError, match="cannot be begun again"):
        draws.draw(other, next)


def test_epochs_that_both_the_script_and_a_generator_have_begun_are_not_begun_again(draws: IteratorReplay) -> None:
    loader = loader_of()
    stream = endless(loader)
    draws.at_boundary()
    next(iter(loader))
    draws.draw(stream, next)
    draws.rewind()
    with pytest.raises(StateMismatchError, match="cannot be begun again"):
        iter(loader)


def test_workers_that_cannot_tell_how_they_are_begin_their_first_epoch_again_and_no_other(
    draws: IteratorReplay,
) -> None:
    loader = loader_of(Unknowable())
    torch.manual_seed(5)
    before = torch.get_rng_state()
    draws.at_boundary()
    first = values(loop(loader, 1))
    go_back(draws, before)
    assert values(loop(loader, 1)) == first
    draws.at_boundary()
    iter(loader)
    draws.rewind()
    with pytest.raises(StateMismatchError, match="cannot be begun again"):
        iter(loader)
