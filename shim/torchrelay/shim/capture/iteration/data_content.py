"""Take digests of the content of data sets that is too much to be carried.

A new process makes the like itself, and the digests tell whether it has come to the same. Equal content gives equal digests in
every process, whatever objects it consists of. No code of the script's is run for it, but how an object without attributes, whose
type is not known, says that it is pickled.

Large tensors and arrays, and long lists, are read in part: in pieces that lie evenly across them. That is as much as it takes to
tell another seed, another order or another file, and not a single item that is another one. What cannot be read at all, such as a
handle of a file, counts by its class.
"""

from __future__ import annotations

import hashlib
import marshal
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.capture.iteration import data_changes
from torchrelay.shim.capture.iteration.data_changes import DataChanges
from torchrelay.shim.capture.state.data_origins import DataOrigins, Maker
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.state.parts import attributes, dataset_parts, loader_own, made_with, own_attributes
from torchrelay.shim.capture.values import by_value
from torchrelay.shim.capture.values.base_types import (
    deque_items,
    dict_items,
    list_items,
    set_items,
    tuple_items,
)
from torchrelay.shim.capture.values.kinds import DATA, PLAIN, Kind, kind_of
from torchrelay.shim.tensors import digest
from torchrelay.shim.tensors.inference import outside_inference
from torchrelay.shim.tensors.tensor_bytes import flat_bytes, is_plain, local, memory, plain_copy

_WHOLE_BYTES = 16 << 20
"""A larger tensor or array is read in pieces."""
_PIECES = 1024
_PIECE_BYTES = 16 << 10
_STREWN = 1 << 20
"""So many elements are read of one that does not lie in one piece."""
_MOST_ITEMS = 1 << 12
"""Of a longer container, so many items are looked at that are no plain values."""
_MOST_OBJECTS = 1 << 17
"""The most objects of one attribute that are looked into. Further ones count by their class."""
_MOST_DEPTH = 100
_CHUNK = 4096
_ATOMS = frozenset({bool, bytes, complex, float, int, str, type(None)})
_BY_ITSELF = frozenset({Kind.TORCH_GENERATOR, Kind.PYTHON_RANDOM, Kind.NUMPY_RANDOM, Kind.SHARED_VALUE})
"""What a journal has by itself."""
_WITHOUT_REFERENCES = 2
"""The version of marshal that writes equal values as equal bytes, whichever of them are one object."""

Content = Mapping[str, bytes]
"""A digest by the name of an attribute."""


def content_of(owner: Any, *, but: Collection[str] = ()) -> Content:
    """Return digests of what is not state of a data set or a loader, but for some attributes."""
    with outside_inference():
        return {name: _Reading().of(value) for name, value in _parts(owner).items() if name not in but}


def differing(owner: Any, content: Content) -> list[str]:
    """Return the attributes that have another content here."""
    now = {**made_with(owner), **attributes(owner)} if kind_of(type(owner)) is Kind.LOADER else attributes(owner)
    with outside_inference():
        return [name for name, was in content.items() if name not in now or _Reading().of(now[name]) != was]


def tell(state: HostState, origins: DataOrigins, changes: DataChanges, *, around: bool) -> None:
    """Take the digests of data that training has made and goes on with, once: at the head of a loop that was just walked.

    `around`: it is a loop around the training loop. Of what a step has made they are taken there: most of it serves one evaluation.
    """
    for obj, origin in origins.without_content():
        found = state.index.get(id(obj))
        if kind_of(type(obj)) not in DATA:
            origin.content = {}
        elif found is not None and (around or origin.maker is Maker.ITERATION):
            origin.content = content_of(obj, but=changes.changed_by_draws(obj))
            state.renewed.add(found)


def _parts(owner: Any) -> dict[str, Any]:
    """Return the attributes that are not state. Of a loader these are also the plain values that it was made with."""
    if kind_of(type(owner)) is Kind.LOADER:
        known = loader_own(owner)
        made = {name: value for name, value in made_with(owner).items() if type(value) in PLAIN}
        return {**made, **{name: value for name, value in own_attributes(owner).items() if name not in known}}
    plain, below = dataset_parts(owner)
    changed = data_changes.carried(owner)
    own = attributes(owner).items()
    return {name: value for name, value in own if name not in plain and name not in below and name not in changed}


class _Reading:
    """One look at one attribute."""

    def __init__(self) -> None:
        self._left = _MOST_OBJECTS
        self._within: set[int] = set()
        """What is being looked into: what leads back to it ends there."""

    def of(self, value: Any) -> bytes:
        cls = type(value)
        if cls in _ATOMS:
            return _hashed(b"plain", marshal.dumps(value, _WITHOUT_REFERENCES))
        kind = kind_of(cls)
        read = _READ.get(kind)
        head = f"{kind.name} {cls.__module__}.{cls.__qualname__}".encode()
        self._left -= 1
        if read is None or id(value) in self._within or len(self._within) >= _MOST_DEPTH or self._left < 0:
            return _hashed(head)
        self._within.add(id(value))
        try:
            return _hashed(head, *read(self, value))
        finally:
            self._within.discard(id(value))

    def sequence(self, values: list[Any]) -> Iterable[bytes]:
        """Yield the length, then the items: plain values many at a time, others one by one."""
        yield len(values).to_bytes(8, "little")
        every = -(-len(values) // _MOST_ITEMS)
        for start in range(0, len(values), _CHUNK):
            part = values[start : start + _CHUNK]
            if _ATOMS.issuperset(map(type, part)):
                yield marshal.dumps(part, _WITHOUT_REFERENCES)
            else:
                yield from map(self.of, part[-start % every :: every])

    def mapping(self, values: Mapping[Any, Any]) -> Iterable[bytes]:
        yield from self.sequence([*values])
        yield from self.sequence([*values.values()])

    def no_order(self, values: Iterable[Any]) -> Iterable[bytes]:
        yield from sorted(map(self.of, values))

    def tensor(self, value: Any) -> Iterable[bytes]:
        try:
            there = local(value)
        except UnsupportedError:
            return
        yield f"{there.dtype} {list(there.shape)} {there.device.type}".encode()
        yield _of_bytes(there)

    def array(self, value: Any) -> Iterable[bytes]:
        yield f"{value.dtype.str} {value.shape}".encode()
        if value.dtype.hasobject:
            yield from self.sequence(value.ravel().tolist())
        elif value.nbytes:
            every = 1 if value.flags.c_contiguous else -(-value.nbytes // _WHOLE_BYTES)
            plain = value if value.flags.c_contiguous else value.flat[::every]
            yield _of_buffer(memoryview(plain.reshape(-1).view("u1")))

    def data_set(self, value: Any) -> Iterable[bytes]:
        """Yield what is no state of a data set within another one."""
        yield from self.mapping(_parts(value))

    def function(self, value: types.FunctionType) -> Iterable[bytes]:
        yield f"{value.__module__}.{value.__qualname__}".encode()
        cells = []
        for cell in value.__closure__ or ():
            try:
                cells.append(cell.cell_contents)
            except ValueError:  # of a variable that has no value yet
                cells.append(None)
        yield from self.sequence([*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()])

    def through(self, value: Any) -> Iterable[bytes]:
        for name in ("__name__", "__self__", "__func__", "func", "args", "keywords"):
            part = getattr(value, name, None)
            if part is not None and not isinstance(part, types.ModuleType):
                yield self.of(part)

    def other(self, value: Any) -> Iterable[bytes]:
        """Yield what an object without attributes says of itself."""
        if type(value) in (bytearray, memoryview):
            view = memoryview(value)
            yield _of_buffer(view if view.c_contiguous else memoryview(view.tobytes()))
        elif type(value) is frozenset:
            yield from self.no_order(value)
        else:
            yield by_value.digest(value)


_READ: Mapping[Kind, Callable[[_Reading, Any], Iterable[bytes]]] = {
    Kind.PLAIN: _Reading.other,
    Kind.UNKNOWN: _Reading.other,
    Kind.BYTEARRAY: _Reading.other,
    Kind.LIST: lambda reading, value: reading.sequence(list_items(value)),
    Kind.TUPLE: lambda reading, value: reading.sequence([*tuple_items(value)]),
    Kind.DEQUE: lambda reading, value: reading.sequence(deque_items(value)),
    Kind.DICT: lambda reading, value: reading.mapping(dict_items(value)),
    Kind.SET: lambda reading, value: reading.no_order(set_items(value)),
    Kind.ATTRS: lambda reading, value: reading.mapping(attributes(value)),
    Kind.MODULE: lambda reading, value: reading.mapping(attributes(value)),
    Kind.DATASET: _Reading.data_set,
    Kind.LOADER: lambda reading, value: (),
    Kind.TENSOR: _Reading.tensor,
    Kind.NDARRAY: _Reading.array,
    Kind.FUNCTION: _Reading.function,
    Kind.CLASS: lambda reading, value: (f"{value.__module__}.{value.__qualname__}".encode(),),
    Kind.THROUGH: _Reading.through,
    **dict.fromkeys(_BY_ITSELF, lambda reading, value: ()),
}


def _hashed(*parts: bytes) -> bytes:
    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        made.update(len(part).to_bytes(8, "little"))
        made.update(part)
    return made.digest()


def _of_buffer(data: memoryview) -> bytes:
    """Return the digest of bytes that lie in one piece."""
    made = hashlib.blake2b(digest_size=16)
    if data.nbytes <= _WHOLE_BYTES:
        made.update(data)
    else:
        data = data.cast("B")
        for start in _starts(data.nbytes):
            made.update(data[start : start + _PIECE_BYTES])
    return made.digest()


def _of_bytes(tensor: torch.Tensor) -> bytes:
    size = tensor.numel() * tensor.element_size()
    if not is_plain(tensor):
        tensor = plain_copy(tensor) if size <= _WHOLE_BYTES else _strewn(tensor)
    if tensor.device.type == "cpu":
        return _of_buffer(memory(tensor))
    data = flat_bytes(tensor)
    if data.numel() > _WHOLE_BYTES:
        data = torch.cat([data[start : start + _PIECE_BYTES] for start in _starts(data.numel())])
    return digest.digest(data).encode()


def _strewn(tensor: torch.Tensor) -> torch.Tensor:
    """Return some elements that lie evenly across a tensor."""
    places = torch.arange(0, tensor.numel(), -(-tensor.numel() // _STREWN), device=tensor.device)
    at = []
    for size in reversed(tensor.shape):
        at.append(places % size)
        places = places // size
    return plain_copy(tensor[tuple(reversed(at))])


def _starts(size: int) -> Iterable[int]:
    """Return where pieces begin that lie evenly across so many bytes, the first and the last among them."""
    return ((size - _PIECE_BYTES) * place // (_PIECES - 1) for place in range(_PIECES))
