"""Reading, in the rest of a step, what that part has written: an average of the weights that is evaluated or saved.

A joiner's tensors have the donor's content, which has in it whatever the donor has written since the optimizer step; the joiner
writes it all once more. When it has written to a tensor as often as the donor, what the lost rank had there is the donor's
content: that is put back then, and can be read from there on, as long as nothing more is written to it.

What is written through `.data` torch does not count. Where the donor stands at the next head, all its writes are done. So the first
read of what was written so far is taken for one behind the last write: the donor's content is put back for it.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.tensors.dtensor import local
from torchrelay.shim.adapters.tensors.storages import is_freed, unseen
from torchrelay.shim.tensors.taint import ABOUT_FORM, Watch, tensors_of
from torchrelay.shim.tensors.tensor_versions import version_of

_COPIED = frozenset({"numpy", "__array__"})
"""What they give shares the tensor's memory. The script gets a copy that it cannot write to: such writes could not be followed."""
_READ = frozenset(
    {"item", "tolist", "__bool__", "__float__", "__int__", "__index__", "__complex__", "__repr__", "__format__"}
    | {"__reduce_ex__", "untyped_storage", "__contains__", "is_nonzero", "equal", "allclose"}
)
"""Functions that give no tensor, and are there for reading; `torch.save` asks for a storage."""


class SettlingWatch(Watch):
    """`times`: how often the donor has written to which of `sources` since the optimizer step, as far as torch counts.

    `is_through`: the donor is through with the step, and `times` is all of what torch has counted.

    Raises StateMismatchError, into the script, for a write to a settled tensor, and where its memory is handed out.
    """

    def __init__(
        self,
        sources: Mapping[str, torch.Tensor],
        late: Collection[str],
        times: Mapping[str, int],
        *,
        comes_back: bool = False,
        is_through: bool = False,
    ) -> None:
        super().__init__(sources, late, comes_back=comes_back)
        self._begun = {path: version_of(tensor) for path, tensor in sources.items() if path not in late}
        """Of what torch has counted no write to, the versions at the beginning; empty unless `is_through`."""
        if not is_through:
            self._begun = {}
        written = {path: tensor for path, tensor in sources.items() if times.get(path, 0) > 0}
        self._aims = {path: version_of(tensor) + times[path] for path, tensor in written.items()}
        self._donors = {
            path: local(tensor).detach().to("cpu", copy=True)
            for path, tensor in written.items()
            if _can_be_put_back(tensor)
        }
        self._settled: set[str] = set()
        self._arrays: list[tuple[str, weakref.ref[Any]]] = []
        self._refusal = ""
        """Of the first error that was raised into the script, which may have caught it."""

    def check_settled(self, changed: Iterable[str]) -> None:
        """At the donor's place. `changed`: sources that do not have its content. Raises StateMismatchError."""
        if self._refusal:
            raise StateMismatchError(self._refusal)
        for path in self._settled.intersection(changed):
            raise StateMismatchError(f"{path} was written to past torch after the optimizer step, and read there")
        for path, array in self._arrays:
            if array() is not None:
                raise StateMismatchError(f"the step keeps an array that shares the memory of {path}")

    def certain(self, tensors: Iterable[torch.Tensor]) -> None:
        """As Watch.certain. What torch does not count as a write has been put into them: the donor had it before it was read."""
        tensors = list(tensors)
        with unseen():
            shared = [path for tensor in tensors for path in self.paths_of(tensor) if path in self._settled]
        for path in shared:
            raise self._refused(f"{path} was read after the optimizer step, before a collective put its result into it")
        super().certain(tensors)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", str(func))
        if name == "__get__" and getattr(func.__self__, "__name__", "") == "data":
            self._keep_donors(args[0])
        elif name in _READ and self._begun:
            self._settle_uncounted(tensors_of((args, kwargs or {})))
        result = super().__torch_function__(func, types, args, kwargs)
        if result is None or not self._settled or name in ABOUT_FORM or name in _READ or name in ("__get__", "__set__"):
            return result
        if next(iter(tensors_of(result)), None) is not None:
            return result
        shared = [path for t in tensors_of((args, kwargs or {})) for path in self.paths_of(t) if path in self._settled]
        if not shared:
            return result
        if name not in _COPIED:
            raise self._refused(f"the step hands out the memory of {shared[0]} ({name}), which it writes to")
        copy = result.copy()
        copy.setflags(write=False)
        self._arrays.append((shared[0], weakref.ref(copy)))
        return copy

    def _keep_donors(self, tensor: torch.Tensor) -> None:
        """Keep what a source holds before the script gets a tensor by which it can be written to past torch's counts."""
        for path in self.paths_of(tensor) if self._begun else ():
            source = self.source(path)
            if path in self._begun and path not in self._donors and self.is_at_home(path) and _can_be_put_back(source):
                self._donors[path] = local(source).detach().to("cpu", copy=True)

    def _settle_uncounted(self, read: Iterable[torch.Tensor]) -> None:
        """Put the donor's content back into what is read now, and was written to past torch's counts alone."""
        for path in [path for tensor in read for path in self.paths_of(tensor)]:
            donors = self._donors.get(path)
            is_uncounted = self._begun.get(path) == version_of(self.source(path))
            if donors is None or path in self._settled or not is_uncounted or self.is_at_home(path):
                continue
            with torch.no_grad():
                local(self.source(path)).data.copy_(donors)
            self.settle(path)
            self._settled.add(path)

    def _refused(self, reason: str) -> StateMismatchError:
        self._refusal = self._refusal or reason
        return StateMismatchError(reason)

    def _wrote(self, tensor: torch.Tensor, name: str, content: int) -> list[str]:
        paths = super()._wrote(tensor, name, content)
        for path in paths:
            donors = self._donors.get(path)
            if path in self._settled or donors is None or not self._is_written_as_often(path):
                continue
            if not self.is_at_home(path):
                with torch.no_grad():
                    local(self.source(path)).data.copy_(donors)  # past the counter, by which writes are compared
                self.settle(path)
            self._settled.add(path)
        return paths

    def _has_other(self, path: str, name: str) -> None:
        if path in self._settled:
            raise self._refused(
                f"{path} was written to ({name}) after the optimizer step more often than by the donor, or past torch"
            )

    def _can_be_right(self, path: str) -> bool:
        return super()._can_be_right(path) or self._is_written_as_often(path)

    def _is_written_as_often(self, path: str) -> bool:
        return version_of(self.source(path)) == self._aims.get(path)


def _can_be_put_back(tensor: torch.Tensor) -> bool:
    """Not where an array may share its memory, through which it can be written to unseen: torch bars resizing of it then."""
    part = local(tensor)
    if (
        part.layout is not torch.strided
        or part.is_inference()
        or is_freed(part)
        or torch._debug_has_internal_overlap(part)
    ):
        return False
    return part.untyped_storage().resizable()
