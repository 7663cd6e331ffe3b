"""Tensors that a script keeps as attributes of the first FSDP's parameters are told from what FSDP keeps there."""

from __future__ import annotations

import torch
from torch.distributed.fsdp import _flat_param  # noqa: F401 - what annotates a flat parameter's own attributes

from torchrelay.shim.adapters.parallel.wrappers import kept_beside_flat


def flat_model() -> torch.nn.Module:
    model = torch.nn.Linear(2, 2, bias=False)
    weight = model.weight
    weight._is_flat_param = True  # type: ignore[attr-defined]
    weight._local_shard = weight.data  # type: ignore[attr-defined]
    return model


def test_what_fsdp_keeps_there_is_its_own() -> None:
    assert kept_beside_flat([flat_model()]) == []


def test_a_tensor_of_the_scripts_is_named_and_a_number_is_not() -> None:
    model = flat_model()
    model.weight.second = torch.zeros(2)  # type: ignore[assignment]
    model.weight.steps = 3  # type: ignore[assignment]
    assert kept_beside_flat([model]) == ["second"]


def test_a_plain_parameter_may_have_any() -> None:
    model = torch.nn.Linear(2, 2)
    model.weight.second = torch.zeros(2)  # type: ignore[assignment]
    assert kept_beside_flat([model]) == []
