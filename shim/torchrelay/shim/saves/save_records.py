"""What a journal holds of a save that is under way: all that it was given, but for the content of its large tensors.

Small tensors, and everything else, are the rank's own and are written down. A large one is one of a donor's or of a copy; its
digest tells whether it is what this rank was about to save.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from torchrelay.protocol.errors import JournalError, StateMismatchError, UnsupportedError
from torchrelay.shim.adapters.tensors.dtensor import around, is_spread, local, mesh_of, spread_of
from torchrelay.shim.capture.state.host_state import LargeTensor
from torchrelay.shim.capture.values import small
from torchrelay.shim.script.save_future import SaveId
from torchrelay.shim.tensors import digest

OWN_BYTES = 8 << 10
"""The state of a random generator is smaller; weights of norms and biases are many, and each boundary's journal has all of it."""
PREFIX = "save."
"""Of the paths of such tensors, among those that are transferred."""


@dataclass(frozen=True)
class Described:
    """A save as it is written down. `content`: for `restored`, pickled; `tensors`: the large ones, by path."""

    content: bytes
    tensors: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Restored:
    """A save as it was read. `tensors`: path -> memory for the content of a large one, which has to be that of `digests`."""

    state: Any
    options: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    digests: Mapping[str, str]

    def is_whole(self) -> bool:
        return digest.digests(self.tensors) == self.digests


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, prefix: str) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._prefix = prefix
        self.found: dict[str, torch.Tensor] = {}
        self._known: dict[int, tuple[str, Any]] = {}

    def persistent_id(self, obj: Any) -> tuple[str, Any] | None:
        if not isinstance(obj, torch.Tensor):
            return None
        known = self._known.get(id(obj))
        if known is None:
            known = self._known[id(obj)] = self._write(obj)
        return known

    def _write(self, tensor: torch.Tensor) -> tuple[str, Any]:
        if not is_spread(tensor) and type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise UnsupportedError(f"a {type(tensor).__name__} is saved")
        value = small.take_if_small(tensor, OWN_BYTES)
        if value is not None:
            return "", value
        path = f"{self._prefix}{len(self.found)}"
        part = self.found[path] = local(tensor).detach()
        return path, LargeTensor(part.dtype, tuple(part.shape), str(part.device), spread_of(tensor))


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.made: dict[str, torch.Tensor] = {}
        self._whole: dict[str, torch.Tensor] = {}
        self._meshes: dict[tuple[str, ...], Any] = {}

    def persistent_load(self, pid: Any) -> torch.Tensor:
        path, form = pid
        if not path:
            return small.build(form)
        if path not in self._whole:
            part = self.made[path] = torch.empty(form.shape, dtype=form.dtype, device=form.device)
            self._whole[path] = part if form.spread is None else around(part, form.spread, self._mesh(form.spread))
        return self._whole[path]

    def _mesh(self, spread: Any) -> Any:
        if spread.groups not in self._meshes:
            self._meshes[spread.groups] = mesh_of(spread.groups)
        return self._meshes[spread.groups]


def describe(save_id: SaveId, state: Any, options: Mapping[str, Any]) -> Described:
    """Write a save down. `options`: of the save, without its process group.

    Raises UnsupportedError where something cannot be written down.
    """
    file = io.BytesIO()
    writer = _Writer(file, f"{PREFIX}{save_id.group}.{save_id.number}.")
    try:
        writer.dump((state, dict(options)))
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as e:
        raise UnsupportedError(f"what is saved cannot be written down: {e}") from e
    digests = digest.digests(writer.found)
    return Described(pickle.dumps((file.getvalue(), digests)), writer.found)


def restored(content: bytes) -> Restored:
    """Read a save that was written down. Raises JournalError, StateMismatchError."""
    try:
        data, digests = pickle.loads(content)
        reader = _Reader(io.BytesIO(data))
        state, options = reader.load()
    except StateMismatchError:
        raise
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, TypeError, ValueError) as e:
        raise JournalError(f"what was being saved cannot be read here: {type(e).__name__}: {e}") from e
    return Restored(state, options, reader.made, digests)


def size_bytes(state: Any) -> int:
    """Return the size of the tensors in nested dicts, lists and tuples."""
    if isinstance(state, torch.Tensor):
        part = local(state)
        return part.numel() * part.element_size()
    if isinstance(state, Mapping):
        return sum(map(size_bytes, state.values()))
    return sum(map(size_bytes, state)) if isinstance(state, list | tuple) else 0
