"""The names by which a rank has told of its tensors in the loop before."""

from __future__ import annotations

import torch

from torchrelay.shim.replicas.names_told import NamesTold


def test_a_tensor_is_known_by_what_it_is_and_not_by_its_name() -> None:
    names = NamesTold()
    a, b = torch.zeros(2), torch.zeros(2)
    names.told({"m0": a, "m1": b}, 4)
    made = torch.zeros(2)
    assert names.of_loop_before({"m0": made, "m1": a, "v": b}, 6) == {"m1": "m0", "v": "m1"}


def test_a_boundary_that_is_told_of_twice_is_compared_with_the_one_before_it() -> None:
    names = NamesTold()
    a, b = torch.zeros(2), torch.zeros(2)
    names.told({"a": a}, 4)
    names.told({"a": a, "b": b}, 6)
    assert names.of_loop_before({"c": a, "b": b}, 6) == {"c": "a"}
    names.told({"c": a, "b": b}, 6)
    assert names.of_loop_before({"c": a, "b": b}, 6) == {"c": "a"}
    assert names.of_loop_before({"c": a, "b": b}, 7) == {"c": "c", "b": "b"}


def test_a_tensor_at_a_lost_ones_address_is_another_one() -> None:
    names = NamesTold()
    known = torch.zeros(2)
    names.told({"a": known}, 4)
    (key,) = names._latest
    del known
    made = torch.zeros(2)
    names._latest[id(made)] = names._latest[key]
    assert names.of_loop_before({"a": made}, 6) == {}
