"""Describe in words what differs between two recorded states."""

from __future__ import annotations

from typing import Any, NamedTuple

from torchrelay.shim.capture.models.bound_tensors import TensorForm
from torchrelay.shim.capture.records.encode import EncodedNode
from torchrelay.shim.capture.state.host_state import LargeTensor, OptimizerTensor
from torchrelay.shim.capture.state.tags import WINDOW
from torchrelay.shim.capture.values.array_windows import Window
from torchrelay.shim.capture.values.kinds import PLAIN
from torchrelay.shim.capture.values.small import TensorValue

_SHOWN = 60
"""The most characters of a value in a message."""


class Difference(NamedTuple):
    """`path`: as the script would write it. `node`, `key`: what holds the value in the second state; -1 where that lacks it."""

    path: str
    was: str
    now: str
    node: int = -1
    key: Any = None

    def __str__(self) -> str:
        return f"{self.path} was {self.was} and is {self.now}"


def shown_form(form: TensorForm | None) -> str:
    if form is None:
        return "None"
    frozen = "" if form.requires_grad or not form.parameter else ", frozen"
    tied = f", the same as {'.'.join(filter(None, (form.tied[0], form.tied[2])))}" if form.tied else ""
    shape = "without a shape" if form.shape is None else list(form.shape)
    strides = f" in strides {list(form.strides)}" if form.strides else ""
    return f"a tensor {shape} of {str(form.dtype).removeprefix('torch.')}{strides}{frozen}{tied}"


def shown_part(value: tuple[Any, ...]) -> str:
    return Window(*value[2]).in_words() if value[0] == WINDOW else f"{value[2]} of the model"


def type_of(node: EncodedNode) -> str:
    return node.cls.__name__ if node.cls is not None else node.kind.name.lower()


def shown(value: Any) -> str:
    if isinstance(value, TensorValue):
        return f"a tensor {list(value.shape)} of {value.dtype} with the bytes {value.data[:8].hex()}…"
    if isinstance(value, LargeTensor):
        return f"a {'freed ' if value.freed else ''}tensor {list(value.shape)} of {value.dtype}"
    if isinstance(value, OptimizerTensor):
        return f"what an optimizer has as {value.name} of its parameter {value.place}"
    if type(value) in PLAIN:
        text = repr(value)
        return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return f"of type {type(value).__name__}" if type(value) is not tuple else "another object"
