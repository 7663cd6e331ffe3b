from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn, overrides
from torch.overrides import TorchFunctionMode

from torchrelay.shim.adapters.tensors.following_mode import FollowingMode


class Followed(FollowingMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


class Plain(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Sub(torch.Tensor):
    pass


def encoder() -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()


def test_fused_kernels_are_used_as_without_it_and_are_followed() -> None:
    layer, batch = encoder(), torch.randn(2, 8, 16)
    with torch.no_grad():
        alone = layer(batch)
        with Plain():
            assert not torch.equal(layer(batch), alone), "torch asks no mode any more: this adapter is superfluous"
        with Followed() as followed:
            assert torch.equal(layer(batch), alone)
            with Followed():
                assert torch.equal(layer(batch), alone)
    assert "_transformer_encoder_layer_fwd" in followed.names


def test_modes_and_classes_of_the_script_count() -> None:
    with Followed():
        assert not overrides.has_torch_function((torch.zeros(1),))
        assert overrides.has_torch_function((torch.zeros(1).as_subclass(Sub),))  # type: ignore[no-untyped-call]  # torch's
        with Plain():
            assert overrides.has_torch_function((torch.zeros(1),))


def test_torch_has_its_function_back_when_the_last_has_ended() -> None:
    own = overrides.has_torch_function
    with Followed():
        with Followed():
            assert overrides.has_torch_function is not own
        assert overrides.has_torch_function is not own
    assert overrides.has_torch_function is own


def test_modes_that_the_script_has_begun_meanwhile_stay_on() -> None:
    below = Followed()
    below.__enter__()
    with torch.device("meta"):
        assert below.is_on()
        below.__exit__(None, None, None)
        assert not below.is_on()
        assert torch.ones(1).is_meta
    assert not torch.ones(1).is_meta


def test_one_that_is_not_on_ends_no_other() -> None:
    with Followed() as other:
        with pytest.raises(RuntimeError, match="cannot end"):
            Followed().__exit__(None, None, None)
        assert other.is_on()
