"""Keys of dicts as text, the same in each process. No method of a key's own class is asked."""

from __future__ import annotations

import enum
import zlib
from typing import Any

import torch

from torchrelay.shim.capture.values import by_value
from torchrelay.shim.capture.values.base_types import tuple_items
from torchrelay.shim.capture.values.kinds import Kind, kind_of

_BUILT_IN = frozenset({str, bytes, bool, int, float, complex, type(None), range, type(...)})


def text_of(key: Any) -> str:
    """Return what a key is called in paths. An object that is no value has the name of its class; its place tells it apart."""
    cls = type(key)
    if cls in _BUILT_IN or cls in _OF_TORCH:
        return repr(key)
    if issubclass(cls, tuple):
        parts = [text_of(part) for part in tuple_items(key)]
        return f"{'' if cls is tuple else cls.__name__}({', '.join(parts)})"
    if issubclass(cls, frozenset):
        return f"{{{', '.join(sorted(map(text_of, frozenset.__iter__(key))))}}}"
    if issubclass(cls, enum.Enum):
        name = object.__getattribute__(key, "_name_")  # none of flags together, before Python 3.11
        return f"{cls.__name__}.{name}" if name else f"{cls.__name__}({object.__getattribute__(key, '_value_')})"
    if issubclass(cls, type):
        return f"{type.__getattribute__(key, '__module__')}.{type.__getattribute__(key, '__qualname__')}"
    written = by_value.dumps(key) if kind_of(cls) is Kind.PLAIN else None
    return cls.__qualname__ if written is None else f"{cls.__qualname__} {zlib.crc32(written):08x}"


_OF_TORCH = frozenset({torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size})
