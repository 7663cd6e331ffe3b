"""What an iterator has yielded, as it was: a step that has written into its batch in place can be given it again.

Torch counts what is written to a tensor, so a copy is needed only where batches are written to; nobody counts for arrays of numpy.
The content is put back into the tensor itself: whoever else holds it, or a view of it, sees the batch as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.tensors.tensor_bytes import write
from torchrelay.shim.tensors.tensor_versions import version_of, versions_of

SMALL_BYTES = 256 << 10
"""Batches up to this size are copied in any case: it takes some ten microseconds, and covers the first step that writes."""
FIRST_STEPS = 2
"""In which batches of every size are copied: until then nobody knows what the step does with them."""


class Original:
    """One tensor, and how it was when it was noted."""

    __slots__ = ("_content", "_needs_gradient", "tensor", "version")

    def __init__(self, tensor: torch.Tensor, version: int, *, copy: bool) -> None:
        self.tensor = tensor
        self.version = version
        self._needs_gradient = tensor.requires_grad
        self._content = tensor.detach().clone() if copy and not tensor.is_meta else None

    def was_written(self) -> bool:
        return version_of(self.tensor) != self.version

    def can_be_put_back(self) -> bool:
        return self._content is not None or not self.was_written()

    def put_back(self) -> None:
        """Put the tensor back as it was. Raises StateMismatchError where it was written to, and there is no copy."""
        tensor = self.tensor
        if self.was_written():
            self._put_content()
        if tensor.requires_grad != self._needs_gradient and tensor.is_leaf:
            tensor.requires_grad_(self._needs_gradient)
            tensor.grad = None
        self.version = version_of(tensor)

    def _put_content(self) -> None:
        tensor = self.tensor
        content = self._content
        if content is None:
            raise StateMismatchError("the step wrote into its own batch: it cannot be done again")
        with torch.no_grad():
            if tensor.grad_fn is not None and not self._needs_gradient:
                tensor.detach_()
            if (tensor.shape, tensor.stride(), tensor.dtype) == (content.shape, content.stride(), content.dtype):
                write(tensor.detach(), content)
            else:
                tensor.data = content.clone()


class OriginalArray:
    """One array of numpy, and how it was. It can be written to without a trace, so it is put back in any case."""

    __slots__ = ("_array", "_content")

    def __init__(self, array: Any) -> None:
        self._array = array
        self._content = array.copy()

    def put_back(self) -> None:
        if self._array.flags.writeable and self._array.shape == self._content.shape:
            self._array[...] = self._content


def originals_of(tensors: Sequence[torch.Tensor], arrays: Sequence[Any], *, copy: bool) -> list[Any]:
    """Return originals of what can change. `copy`: whether tensors of every size are copied.

    None of them in inference mode: no training loop runs in it.
    """
    if torch.is_inference_mode_enabled():
        return []
    own = [t for t in tensors if not isinstance(t, torch.nn.Parameter)]  # `next(model.parameters())` is no batch
    if not copy:
        copy = sum(t.numel() * t.element_size() for t in own if t.layout is torch.strided) <= SMALL_BYTES
    found: list[Any] = [Original(t, version, copy=copy) for t, version in zip(own, versions_of(own))]
    return [*found, *(OriginalArray(a) for a in arrays if a.flags.writeable and a.dtype.kind != "O")]


class BatchOriginals:
    """Decides whether batches of any size are copied. `written`: whether a step was seen to write into one."""

    def __init__(self) -> None:
        self.written = False
        self.copied_bytes = 0

    def copies(self, steps: int) -> bool:
        """Return whether batches of any size are copied. `steps`: how many have begun."""
        return self.written or steps <= FIRST_STEPS

    def look(self, originals: Sequence[Any], is_state: Callable[[Any], bool]) -> None:
        """Look at what a step that is over was given."""
        written = [o for o in originals if isinstance(o, Original) and o.was_written() and not is_state(o.tensor)]
        if written:
            self.written = True
            self.copied_bytes = sum(o.tensor.numel() * o.tensor.element_size() for o in written)
