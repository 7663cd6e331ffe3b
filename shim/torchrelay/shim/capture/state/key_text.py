"""Write keys of dicts as text, the same in each process. No method of a key's own class is asked."""

from __future__ import annotations

import enum
import zlib
from typing import Any

import torch

from torchrelay.shim.capture.values import by_value
from torchrelay.shim.capture.values.base_types import tuple_items

_BUILT_IN = frozenset({str, bytes, bool, int, float, complex, type(None), range, type(...)})


def text_of(key: Any) -> str:
    """Return what a key is called in paths. A key of an unforeseen class is called by its class and a sum of its pickle."""
    cls = type(key)
    if cls in _BUILT_IN or cls in _OF_TORCH:
        return repr(key)
    if issubclass(cls, tuple):
        parts = [text_of(part) for part in tuple_items(key)]
        return f"{'' if cls is tuple else cls.__name__}({', '.join(parts)})"
    if cls is frozenset:
        return f"{{{', '.join(sorted(map(text_of, key)))}}}"
    if issubclass(cls, enum.Enum):
        return f"{cls.__name__}.{object.__getattribute__(key, '_name_')}"
    if issubclass(cls, type):
        return f"{type.__getattribute__(key, '__module__')}.{type.__getattribute__(key, '__qualname__')}"
    written = by_value.dumps(key)
    return cls.__qualname__ if written is None else f"{cls.__qualname__} {zlib.crc32(written):08x}"


_OF_TORCH = frozenset({torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size})
