"""Digests that tell whether something that is not carried has changed: of data sets, and of the script's global variables."""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.utils import data as torch_data

from torchrelay.shim.adapters.tensor_versions import version_of
from torchrelay.shim.capture import callables
from torchrelay.shim.capture.kinds import Kind, kind_of
from torchrelay.shim.capture.parts import attributes, dataset_parts

_LONG, _LARGE_BYTES = 1000, 1 << 16
"""Containers and arrays beyond this are data: told by which they are and how long, not by what is in them."""
_MARK_BYTES = 4 << 20


class _Digest:
    """Where a mark is written. Raises OverflowError when it is as long as data would be."""

    def __init__(self) -> None:
        self._hash, self._left = hashlib.sha256(), _MARK_BYTES

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._left -= size
        if self._left < 0:
            raise OverflowError
        self._hash.update(data)
        return size

    def digest(self) -> bytes:
        return self._hash.digest()


class _Marker(pickle.Pickler):
    def __init__(self, written: Any) -> None:
        super().__init__(written, pickle.HIGHEST_PROTOCOL)
        self._functions: set[int] = set()

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            return "tensor", id(obj), obj.data_ptr(), version_of(obj)
        if isinstance(obj, (ModuleType, type)):
            return "fixed", id(obj)
        if isinstance(obj, FunctionType):
            if id(obj) in self._functions or not callables.is_users_function(obj):
                return "fixed", id(obj)
            self._functions.add(id(obj))
            return "function", id(obj), obj.__defaults__, obj.__kwdefaults__, vars(obj), [*_cells(obj)]
        if isinstance(obj, (list, dict, set, tuple)) and len(obj) > _LONG:
            return "long", id(obj), len(obj)
        if isinstance(obj, torch_data.DataLoader):
            return "fixed", id(obj)
        if getattr(obj, "nbytes", 0) > _LARGE_BYTES and not isinstance(obj, (bytes, bytearray)):
            return "large", id(obj), obj.nbytes
        return None


def _cells(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # of a variable that has no value yet
            yield None


def data_sets(data: Any) -> list[Any]:
    """It, and those below it."""
    found = [data]
    for owner in found:
        _, below = dataset_parts(owner)
        found += [d for d in below.values() if kind_of(type(d)) is Kind.DATASET and not any(d is f for f in found)]
    return found


def of_data(data: Any, collate: Any) -> bytes | None:
    """Of everything below a data set that is not carried, and of what makes batches of its items. Two that are alike are of the
    same content, but for what is long in it.

    None if it cannot be told.
    """
    written = _Digest()
    try:
        for owner in data_sets(data):
            plain, below = dataset_parts(owner)
            rest = {name: v for name, v in attributes(owner).items() if name not in plain and name not in below}
            _Marker(written).dump((type(owner).__qualname__, rest))
        _Marker(written).dump(collate)
    except Exception:  # noqa: BLE001 - whatever the script's objects do when they are asked, it goes on
        return None
    return written.digest()


def of_globals() -> bytes:
    """Of the variables of the script's modules, their classes and functions; of what cannot be pickled, which object it is."""
    found = []
    for name, value in _globals():
        written = _Digest()
        try:
            _Marker(written).dump(value)
            found.append((name, written.digest()))
        except Exception:  # noqa: BLE001 - as above
            found.append((name, str(id(value)).encode()))
    return hashlib.sha256(repr(found).encode()).digest()


def _globals() -> Iterator[tuple[str, Any]]:
    for module in list(sys.modules.values()):
        if not callables.is_users(getattr(module, "__file__", None)):
            continue
        for name, value in list(vars(module).items()):
            if name.startswith("__") or isinstance(value, ModuleType):
                continue
            if not isinstance(value, type):
                yield name, value
            elif callables.is_users_class(value):
                yield from ((f"{name}.{k}", v) for k, v in list(vars(value).items()) if not k.startswith("__"))
