from __future__ import annotations

import pytest
import torch
from torch.distributed.elastic.utils.data import CyclingIterator, ElasticDistributedSampler
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from torchrelay.shim.capture.values.kinds import Kind, kind_of


@pytest.mark.parametrize("cls", [torch.amp.GradScaler, torch.cuda.amp.GradScaler, ShardedGradScaler])
def test_each_of_torchs_gradient_scalers_is_state(cls: type) -> None:
    """Two of the three lie in packages whose other objects are machinery."""
    assert kind_of(cls) is Kind.ATTRS


@pytest.mark.parametrize("cls", [ElasticDistributedSampler, CyclingIterator])
def test_what_torch_elastic_has_for_data_is_state(cls: type) -> None:
    assert kind_of(cls) is Kind.ATTRS


@pytest.mark.parametrize("cls", [torch.cuda.Stream, torch.cuda.Event, torch.autograd.profiler.profile])
def test_torchs_machinery_is_no_state(cls: type) -> None:
    assert kind_of(cls) is Kind.OPAQUE


def test_a_class_of_classes_whose_module_is_a_descriptor_has_a_kind() -> None:
    class OfClasses(type):
        __module__ = property(lambda cls: "some_extension")  # type: ignore[assignment]

    assert kind_of(OfClasses) is Kind.CLASS
