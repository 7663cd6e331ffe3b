"""What a gate's walk takes of variables of which only attributes are read behind it."""

from __future__ import annotations

import sys
from collections import OrderedDict
from types import FrameType
from typing import Any

import pytest
import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.state.parts import names_at_gate, set_variables, variables


class Output:
    def __init__(self) -> None:
        self.loss, self.logits = torch.ones(1), torch.ones(9)


class OfDict(OrderedDict[str, Any]):
    def __init__(self) -> None:
        super().__init__(loss=1, logits=2)
        self.loss, self.logits = torch.ones(1), torch.ones(9)


class Computed(Output):
    @property
    def loss(self) -> Any:
        return self.logits.sum()

    @loss.setter
    def loss(self, value: Any) -> None: ...


class Asked(Output):
    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name)


class Found(Output):
    def __init__(self) -> None:
        self.logits = torch.ones(9)

    def __getattr__(self, name: str) -> Any:
        return self.logits.sum()


def at_gate(outputs: Any, *, fresh: bool = True) -> dict[str, Any]:
    """What is read of `outputs` behind this is its loss."""
    found = names_at_gate(sys._getframe(), lambda obj: fresh)
    str(outputs.loss)  # an assertion would read more: pytest writes it anew
    return found


@pytest.mark.parametrize("kind", [Output, OfDict])
def test_the_attributes_that_are_read_stand_for_the_object(kind: type) -> None:
    outputs = kind()
    found = at_gate(outputs)
    assert "outputs" not in found
    assert found["outputs.loss"] is outputs.loss


@pytest.mark.parametrize("kind", [Computed, Asked, Found])
def test_an_object_that_is_asked_by_code_of_its_own_is_taken_whole(kind: type) -> None:
    outputs = kind()
    assert at_gate(outputs)["outputs"] is outputs


def test_what_was_there_before_the_step_is_taken_whole() -> None:
    outputs = Output()
    assert at_gate(outputs, fresh=False)["outputs"] is outputs


def test_a_tensor_of_which_only_the_form_is_read_is_not_taken() -> None:
    def form() -> tuple[dict[str, Any], Any]:
        batch, mask = torch.ones(4), torch.ones(4)
        found = names_at_gate(sys._getframe(), lambda obj: True)
        return found, (batch.size(0), batch.shape, mask.sum())

    found, _ = form()
    assert "batch" not in found
    assert "mask" in found


def test_an_attribute_is_put_into_the_object_that_the_variable_has_here() -> None:
    outputs = Output()
    frame: FrameType = sys._getframe()
    loss = torch.zeros(1)
    set_variables(frame, {"outputs.loss": loss, "missing.": 1})
    assert outputs.loss is loss
    assert variables(frame, ["outputs.loss", "outputs.nothing", "nothing.loss"])["outputs.loss"] is loss
    with pytest.raises(StateMismatchError, match="the step has made no nothing whose attribute loss is read"):
        set_variables(frame, {"nothing.loss": loss})
