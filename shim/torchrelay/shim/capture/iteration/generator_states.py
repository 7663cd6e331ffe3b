"""Read and write the state of a random generator in a loader's worker."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from torchrelay.shim.capture import rng
from torchrelay.shim.capture.state.parts import numpy_random_state, put_numpy_random_state
from torchrelay.shim.capture.state.random_below import GENERATORS
from torchrelay.shim.capture.values.kinds import Kind, kind_of

_WITH_STATE = GENERATORS - {Kind.SHARED_VALUE}


def is_generator(value: Any) -> bool:
    return kind_of(type(value)) in _WITH_STATE


def state_of(generator: Any) -> Any:
    kind = kind_of(type(generator))
    if kind is Kind.TORCH_GENERATOR:
        return rng.tensor_bytes(generator.get_state())
    return generator.getstate() if kind is Kind.PYTHON_RANDOM else numpy_random_state(generator)


def put(generator: Any, state: Any) -> None:
    kind = kind_of(type(generator))
    if kind is Kind.TORCH_GENERATOR:
        generator.set_state(rng.byte_tensor(state))
    elif kind is Kind.PYTHON_RANDOM:
        generator.setstate(state)
    else:
        put_numpy_random_state(generator, state)


def has_attributes(generator: Any) -> bool:
    """Return whether a class of the script's has given it more than a state."""
    return not {"gauss_next"}.issuperset(getattr(generator, "__dict__", ()))


def of_process() -> dict[str, Any]:
    """Return the process's own generators: functions that a script has from `random` or `numpy.random` belong to them."""
    numpy_random = sys.modules.get("numpy.random")
    found = {
        "python": getattr(random.random, "__self__", None),
        "numpy": getattr(getattr(numpy_random, "rand", None), "__self__", None),
        "torch": torch.default_generator,
    }
    return {name: generator for name, generator in found.items() if generator is not None}
