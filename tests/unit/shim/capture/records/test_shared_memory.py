"""Tensors that share memory: what is written to one is seen in the other, in a new process, too."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from support.host_state import carry, take

from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import encode
from torchrelay.shim.capture.records.shared_memory import SharedPlace
from torchrelay.shim.capture.walks.rewalk import Rewalk

SMALL, LARGE = 12, 40_000


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_parts_of_a_buffer_that_training_has_made_are_parts_of_it(size: int) -> None:
    flat = torch.zeros(size)
    target: dict[str, Any] = {"flat": None, "halves": [], "rows": None, "same": None}
    halves = [flat[: size // 2], flat[size // 2 :]]
    carry({"flat": flat, "halves": halves, "rows": flat.view(4, -1)[:, 1], "same": flat.detach()}, target)
    target["halves"][0].fill_(1)
    target["halves"][1].fill_(2)
    target["rows"].fill_(3)
    target["same"][0] = 4
    assert target["flat"][0] == 4
    assert target["flat"].sum() == size // 2 * 3 + 3 + (3 - 1) * 2 + (3 - 2) * 2


def test_parts_share_where_nobody_keeps_the_whole() -> None:
    flat = torch.arange(6.0)
    target: dict[str, Any] = {"a": None, "b": None}
    carry({"a": flat[:4], "b": flat[2:]}, target)
    target["a"][3] = 9
    assert target["b"].tolist() == [2, 9, 4, 5]


def test_what_set_up_has_made_stays_where_it_is() -> None:
    flat = torch.arange(6.0)
    own = torch.zeros(6)
    target = {"flat": own, "part": own[:3]}
    address = own.data_ptr()
    carry({"flat": flat, "part": flat[:3]}, target)
    assert own.data_ptr() == target["part"].data_ptr() == address
    assert own.tolist() == [0, 1, 2, 3, 4, 5]


def test_tensors_of_set_up_share_once_training_lets_them() -> None:
    flat = torch.arange(6.0)
    target = {"flat": torch.zeros(6), "part": torch.zeros(3)}
    own = target["flat"]
    carry({"flat": flat, "part": flat[3:]}, target)
    target["part"].fill_(8)
    assert target["flat"] is own
    assert own.tolist() == [0, 1, 2, 8, 8, 8]


def test_a_tensor_that_was_known_before_is_written_anew_when_a_part_of_it_comes() -> None:
    namespace: dict[str, Any] = {"flat": torch.zeros(SMALL), "part": None, "other": torch.zeros(2)}
    trees = ModuleTrees()
    base = take(namespace, trees)
    encode.encode(base)
    namespace["part"] = namespace["flat"][:3]
    state = Rewalk(trees, base, at_gate=False).run([], {"script": namespace})
    nodes = encode.decode(encode.encode(state))
    found = {node.key: type(node.extra) for node in nodes if node.key in namespace}
    assert found == {"flat": SharedPlace, "part": SharedPlace, "other": type(None)}


def test_a_tensor_and_an_array_of_training_have_the_same_memory() -> None:
    array = numpy.zeros(8, numpy.float32)
    tensor = torch.zeros(6)
    source = {"array": array, "of_array": torch.from_numpy(array), "tensor": tensor, "of_tensor": tensor.numpy()}
    target: dict[str, Any] = dict.fromkeys(source)
    carry(source, target)
    target["array"][2] = 5
    target["of_array"][3] = 6
    target["tensor"][1] = 7
    target["of_tensor"][0] = 8
    assert target["of_array"].tolist() == target["array"].tolist() == [0, 0, 5, 6, 0, 0, 0, 0]
    assert target["of_tensor"].tolist() == target["tensor"].tolist() == [8, 7, 0, 0, 0, 0]
