"""Follows what is computed from some tensors and what is written to them, through every function of torch that is called."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.tensors.storages import StorageNotes, unseen
from torchrelay.shim.tensors.memory_ranges import MemoryRanges
from torchrelay.shim.tensors.tensor_versions import version_of, versions_of

ABOUT_FORM = frozenset(
    {"__len__", "__hash__", "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset"}
    | {
        "element_size",
        "is_contiguous",
        "is_floating_point",
        "is_complex",
        "is_inference",
        "is_signed",
        "type",
        "get_device",
        "is_shared",
    }
    | {"is_pinned", "is_same_size", "is_tensor", "is_storage", "data_ptr", "has_names", "__dir__"}
)
"""Functions of a tensor whose answer does not depend on its content."""


def tensors_of(value: Any) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_of(item)


class Watch(TorchFunctionMode):
    """`sources`: the tensors, by path; `late`: those whose content is known not to be what the script expects.

    Sets of sources are bits of a number: thousands of operations on what was made from thousands of parameters.
    `strict`: a write to a source is an error at once.
    Raises StateMismatchError, into the script, where a number is read that depends on what is late by then.
    """

    def __init__(
        self, sources: Mapping[str, torch.Tensor], late: Collection[str] = (), *, strict: bool = False
    ) -> None:
        super().__init__()
        self._by_path = dict(sources)
        self._paths = list(sources)
        self._places = {path: place for place, path in enumerate(self._paths)}
        self._moved: dict[int, int] = {}
        """Place of a source as of the beginning -> its present one, see `settle`."""
        self._sources: dict[int, tuple[torch.Tensor, int]] = {}
        for path, tensor in sources.items():
            known = self._sources.get(id(tensor), (tensor, 0))[1]
            self._sources[id(tensor)] = tensor, known | 1 << self._places[path]
        self._memory = MemoryRanges(sources.values())
        self._derived = StorageNotes()
        self._escaped: list[tuple[str, int]] = []
        self._late = 0
        self._strict = strict
        self.late(late)

    def late(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._late |= 1 << self._places[path] if path in self._places else 0

    def written(self) -> list[str]:
        """Sources whose content is late, those included that were given as such."""
        return self._names(self._late)

    def source(self, path: str) -> torch.Tensor:
        return self._by_path[path]

    def paths_of(self, tensor: torch.Tensor) -> list[str]:
        """The sources in whose memory it is."""
        return self._names(self._shared(tensor))

    def settle(self, path: str) -> None:
        """From here on a source holds what the script expects; what was computed from it before does not."""
        before, after = self._places[path], len(self._paths)
        self._paths.append(path)
        self._places[path] = self._moved[before] = after
        tensor, bits = self._sources[id(self._by_path[path])]
        self._sources[id(tensor)] = tensor, bits & ~(1 << before) | 1 << after

    def computed_from(self, tensor: torch.Tensor) -> str:
        """What is late of all that `tensor` was computed from, in words; empty for nothing, and for memory of a source's own."""
        return "" if self._shared(tensor) else self._what(self._of(tensor))

    def certain(self, tensors: Iterable[torch.Tensor]) -> None:
        """They hold what they held in the lost rank, whatever they were computed from: a recorded result was put into them."""
        with unseen():
            for tensor in tensors:
                if tensor.is_contiguous() and id(tensor) not in self._sources and not self._shared(tensor):
                    self._derived.forget(tensor)

    def check_escapes(self) -> None:
        """Raises StateMismatchError if a number was read that depends on what is late."""
        for name, bits in self._escaped:
            self._check(name, bits)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        if name in ("__get__", "__set__"):
            return self._attribute(func, name, args)
        given = list(tensors_of((args, kwargs)))
        bits = 0
        for tensor in given:
            bits |= self._of(tensor)
        if name in ABOUT_FORM or not bits:
            return func(*args, **kwargs)
        versions = versions_of(given)
        result = func(*args, **kwargs)
        made = list(tensors_of(result))
        escapes = (result is not None and not made) or name == "backward"
        for tensor, version in zip(given, versions):
            if version < 0 or version_of(tensor) != version:
                self._wrote(tensor, name)
                made.append(tensor)
        for tensor in made:
            escapes |= not self._derive(tensor, bits)
        if escapes:
            self._escaped.append((name, bits))
            self._check(name, bits)
        return result

    def _attribute(self, func: Any, name: str, args: tuple[Any, ...]) -> Any:
        """What `p.data` and `p.T` give is known by its memory; `p.shape` says nothing of the content."""
        attribute = getattr(func.__self__, "__name__", "")
        result = func(*args)
        if name == "__set__" and attribute == "data":
            known = self._sources.get(id(args[0]))
            for path in self._names(known[1]) if known is not None else ():
                self._memory.add(self._places[path], args[0])
            self._wrote(args[0], "data")
            self._derive(args[0], self._of(args[1]))
        return result

    def _wrote(self, tensor: torch.Tensor, name: str) -> list[str]:
        """The sources that were written to."""
        known = self._sources.get(id(tensor))
        bits = self._shared(tensor) | (known[1] if known is not None else 0)
        self._late |= bits
        if bits and self._strict:
            raise StateMismatchError(
                f"{self._names(bits)[0]} is written to after the optimizer step ({name}) by a rank whose tensors come "
                "from one that has reached the script's end: whether they have that in them cannot be told"
            )
        return self._names(bits)

    def _derive(self, tensor: torch.Tensor, bits: int) -> bool:
        """Whether it can be followed. A source that was written to is late, whatever was written."""
        if id(tensor) in self._sources or self._shared(tensor):
            return True
        return self._derived.add(tensor, bits)

    def _of(self, tensor: torch.Tensor) -> int:
        source = self._sources.get(id(tensor))
        bits = (source[1] if source is not None else 0) | self._shared(tensor)
        return bits or self._derived.of(tensor)

    def _shared(self, tensor: torch.Tensor) -> int:
        """The sources that it shares memory with."""
        bits = 0
        for place in self._memory.shared(tensor):
            bits |= 1 << self._moved.get(place, place)
        return bits

    def _check(self, name: str, bits: int) -> None:
        what = self._what(bits)
        if what:
            raise StateMismatchError(
                f"the step reads {what} after its optimizer step ({name}): "
                "what a lost rank read there cannot be told any more"
            )

    def _names(self, bits: int) -> list[str]:
        names = []
        while bits:
            names.append(self._paths[(bits & -bits).bit_length() - 1])
            bits &= bits - 1
        return names

    def _what(self, bits: int) -> str:
        names = self._names(bits & self._late)
        if not names:
            return ""
        return "gradients" if names[0].startswith("gradient") else f"{names[0]}, which it writes to,"
