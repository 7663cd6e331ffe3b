from __future__ import annotations

import collections
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy
import torch
from torch import nn

from torchrelay.shim.data import item_objects
from torchrelay.shim.data.item_objects import objects_in
from torchrelay.shim.data.replayed_item import ReplayedItem


class Pair(NamedTuple):
    meta: dict[str, Any]
    x: torch.Tensor


def test_objects_and_containers_in_them_are_given_back_what_they_held() -> None:
    sample = SimpleNamespace(text="a", order=[1, 2, 3], meta={"n": 1, "deep": {"of": {4, 5}}})
    encoding = collections.UserDict({"labels": 7})
    ordered = collections.OrderedDict(x=1, y=2)
    order, noted = sample.order, objects_in({"samples": [sample, (encoding, ordered)]})
    sample.order.reverse()
    sample.order, sample.new = [], 1
    sample.meta["deep"]["of"].clear()
    del sample.meta["n"]
    encoding.pop("labels")
    ordered.move_to_end("x")
    for held in noted.objects:
        held.put_back()
    assert vars(sample) == {"text": "a", "order": [1, 2, 3], "meta": {"deep": {"of": {4, 5}}, "n": 1}}
    assert sample.order is order
    assert encoding == {"labels": 7}
    assert list(ordered.items()) == [("x", 1), ("y", 2)]


def test_plain_containers_of_the_item_are_left_to_the_copies_of_them() -> None:
    assert objects_in({"a": [torch.zeros(2), ("b", 3)]}) == ([], [], [])


def test_what_a_named_tuple_holds_is_given_back_in_place() -> None:
    kept = Pair({"n": [1]}, torch.zeros(2))
    drawn = ReplayedItem.note(kept)
    kept.meta["n"].append(2)
    kept.x.add_(1)
    drawn.put_back(lambda _: False)
    assert drawn.again(lambda _: False).meta == {"n": [1]}
    assert len(drawn.tensors) == 1
    assert kept.x.tolist() == [0, 0]


def test_tensors_and_arrays_in_objects_are_found_and_models_are_not_looked_into() -> None:
    tensor, array = torch.zeros(2), numpy.zeros(2)
    found = objects_in([SimpleNamespace(x=tensor, parts=[array], model=nn.Linear(2, 2)), torch.ones(1)])
    assert (len(found.tensors), len(found.arrays)) == (1, 1)
    assert found.tensors[0] is tensor
    assert found.arrays[0] is array


def test_long_lists_of_numbers_are_copied_and_not_looked_through() -> None:
    numbers = list(range(5 * item_objects.MOST_OBJECTS))
    sample = SimpleNamespace(ids=numbers, on=[])
    sample.on.append(sample)
    noted = objects_in([sample])
    numbers.clear()
    for held in noted.objects:
        held.put_back()
    assert len(numbers) == 5 * item_objects.MOST_OBJECTS


def test_an_item_that_leads_to_too_many_is_given_again_as_it_is() -> None:
    assert objects_in([SimpleNamespace(n=n) for n in range(item_objects.MOST_OBJECTS + 1)]) == item_objects.NONE


class Unsized(tuple[Any, ...]):
    """As graph libraries have them: a pair that is no sequence to its users."""

    def __len__(self) -> int:
        raise NotImplementedError


def test_a_tuple_of_the_script_s_is_not_asked_for_its_length() -> None:
    sample = SimpleNamespace(text="a")
    noted = objects_in([Unsized((sample, 1)), SimpleNamespace(parts=Unsized((1, 2)))])
    assert [held.obj for held in noted.objects][-1] is sample
    assert len(noted.objects) == 2
