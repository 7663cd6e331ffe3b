"""Tell whether two values of the script are the same, bit by bit, without asking either of them.

What `==` returns for two arrays has no truth, for two objects of the script it is the script's code, and of two floats that are
equal one may be another number (-0.0, NaN). So code that compares values by content asks here.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from torchrelay.shim.adapters.tensors.dtensor import is_spread, local
from torchrelay.shim.capture.rng import tensor_bytes
from torchrelay.shim.capture.values import by_value
from torchrelay.shim.capture.values.base_types import dict_items, list_items, set_items, tuple_items
from torchrelay.shim.capture.values.kinds import BY_VALUE, PLAIN

_EXACT = frozenset({int, str, bytes, bool, type(None)})
"""Types for which `==` tells all."""


def alike(a: Any, b: Any) -> bool:  # noqa: C901 - one case for each type
    """Return whether both have one type and content. Two of an unknown type are alike if pickle writes the same of both."""
    cls = type(a)
    if cls is not type(b):
        return False
    if a is b:
        return True
    if cls in _EXACT:
        return bool(a == b)
    if issubclass(cls, float):
        return bool(float.hex(a) == float.hex(b))
    if issubclass(cls, complex):
        return alike(complex(a).real, complex(b).real) and alike(complex(a).imag, complex(b).imag)
    if cls is slice:
        return _items_alike((a.start, a.stop, a.step), (b.start, b.stop, b.step))
    if issubclass(cls, tuple):
        return _items_alike(tuple_items(a), tuple_items(b))
    if issubclass(cls, list):
        return _items_alike(list_items(a), list_items(b))
    if issubclass(cls, dict):
        return _dicts_alike(dict_items(a), dict_items(b))
    if issubclass(cls, (set, frozenset)):
        return _sets_alike(a, b)
    if issubclass(cls, torch.Tensor):
        return _tensors_alike(a, b)
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(cls, (numpy.ndarray, numpy.generic)):
        return _arrays_alike(a, b)
    return _values_alike(cls, a, b)


def _values_alike(cls: type, a: Any, b: Any) -> bool:
    base: Any = next((base for base in cls.__mro__ if base in PLAIN or base in BY_VALUE), None)
    if base is not None and (base is cls or base.__eq__(a, b) is not True):
        return base.__eq__(a, b) is True
    written = by_value.content(a)  # what a subclass keeps beside
    return written == by_value.content(b) and (written is not None or base is not None)


def _items_alike(a: Any, b: Any) -> bool:
    if len(a) != len(b):
        return False
    if _EXACT.issuperset(map(type, a)) and _EXACT.issuperset(map(type, b)):
        return bool(a == b) and [*map(type, a)] == [*map(type, b)]
    return all(map(alike, a, b))


def _dicts_alike(a: dict[Any, Any], b: dict[Any, Any]) -> bool:
    """Return whether two dicts are alike: in any order where keys are of plain types, else in the order in which the keys stand."""
    if len(a) != len(b):
        return False
    if PLAIN.issuperset(map(type, a)) and PLAIN.issuperset(map(type, b)):
        return a.keys() == b.keys() and all(alike(a[key], b[key]) for key in a)
    return all(map(alike, a, b)) and all(map(alike, a.values(), b.values()))


def _sets_alike(a: Any, b: Any) -> bool:
    a, b = ([*frozenset.__iter__(s)] if isinstance(s, frozenset) else set_items(s) for s in (a, b))
    if len(a) != len(b):
        return False
    if _EXACT.issuperset(map(type, a)) and _EXACT.issuperset(map(type, b)):
        return {(type(element), element) for element in a} == {(type(element), element) for element in b}
    written = [sorted(by_value.content(element) or b"" for element in elements) for elements in (a, b)]
    return written[0] == written[1] and b"" not in written[0]


def _tensors_alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype is not b.dtype or a.shape != b.shape or a.device != b.device or is_spread(a) is not is_spread(b):
        return False
    a = local(a)
    b = local(b)
    if a.layout is not torch.strided or b.layout is not torch.strided:
        return False
    return tensor_bytes(a) == tensor_bytes(b)


def _arrays_alike(a: Any, b: Any) -> bool:
    if a.shape != b.shape or str(a.dtype) != str(b.dtype):
        return False
    if a.dtype.kind == "O":
        return _items_alike(a.ravel().tolist(), b.ravel().tolist())
    return bool(a.tobytes() == b.tobytes())
