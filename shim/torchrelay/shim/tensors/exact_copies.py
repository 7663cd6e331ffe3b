"""Find out which tensors hold, bit for bit, what another one held at some time: clones, and what was copied back from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from torchrelay.shim.adapters.tensors.dtensor import local
from torchrelay.shim.adapters.tensors.storages import StorageNotes

_MAKE = frozenset({"clone", "contiguous", "to", "cpu", "cuda", "__deepcopy__"})
"""Functions whose result may be a whole copy of their first argument."""
_FILL = frozenset({"copy_", "_foreach_copy_"})
"""Functions that fill their first argument from their second; both may be lists."""
_SET = frozenset({"zero_", "fill_", "_foreach_zero_"})
"""Functions that fill their first argument with one number; it may be a list."""


class Form(NamedTuple):
    """Two tensors of the same form hold the same if one was copied from the other."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class Layout(NamedTuple):
    """Two tensors of the same layout are the same memory."""

    address: int
    strides: tuple[int, ...]
    form: Form


def form_of(tensor: torch.Tensor) -> Form:
    part = local(tensor)
    return Form(tuple(part.shape), part.dtype)


def layout_of(tensor: torch.Tensor) -> Layout | None:
    """Return the tensor's layout, or None for a tensor without memory of its own, such as a sparse one."""
    part = local(tensor)
    try:
        return Layout(part.data_ptr(), tuple(part.stride()), form_of(part))
    except RuntimeError:  # NotImplementedError is one
        return None


class Overwritten(NamedTuple):
    """A tensor that a call overwrites whole: with `source`, or with a number where that is None.

    `is_exact`: it has the content of `source` bit for bit then, neither converted nor repeated.
    """

    target: torch.Tensor
    source: torch.Tensor | None
    is_exact: bool


def overwritten(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Overwritten]:
    """Yield what a call of the function `name` overwrites whole."""
    if name in _SET and args and not any(isinstance(given, torch.Tensor) for given in (*args[1:], *kwargs.values())):
        for target in _each(args[0]):
            yield Overwritten(target, None, is_exact=False)
    if name in _FILL and len(args) > 1:
        for target, source in zip(_each(args[0]), _each(args[1])):
            if isinstance(target, torch.Tensor) and isinstance(source, torch.Tensor):
                yield Overwritten(target, source, form_of(target) == form_of(source))


def _each(given: Any) -> Sequence[Any]:
    return given if isinstance(given, list | tuple) else [given]


def made(name: str, args: tuple[Any, ...], result: Any) -> bool:
    """Return whether `result` is a new tensor with all that the first argument holds."""
    if name not in _MAKE or not args or not _are_tensors(args[0], result) or form_of(args[0]) != form_of(result):
        return False
    source = layout_of(args[0])
    copy = layout_of(result)
    return source is not None and copy is not None and source.address != copy.address


def _are_tensors(*values: Any) -> bool:
    return all(isinstance(value, torch.Tensor) for value in values)


class ExactCopies:
    """Remember what each whole storage holds, as a number of the caller's, until something else is written to it."""

    def __init__(self) -> None:
        self._contents = StorageNotes()
        self._forms: dict[int, Form] = {}
        """By content: the form of the tensor that was noted with it."""

    def note(self, tensor: torch.Tensor, content: int) -> None:
        """Note that all of `tensor`, which has to be all of its storage, holds `content` (above zero) from now on."""
        part = local(tensor)
        self.forget(part)
        if layout_of(part) is None:
            return
        if part.is_contiguous() and part.untyped_storage().nbytes() == part.numel() * part.element_size():
            self._contents.add(part, content)
            self._forms[content] = form_of(part)

    def of(self, tensor: torch.Tensor) -> int:
        """Return what `tensor` holds, or 0 where that is not known, or where it is only a part of it."""
        content = self._contents.of(local(tensor))
        return content if content and self._forms[content] == form_of(tensor) else 0

    def forget(self, tensor: torch.Tensor) -> None:
        """Forget what `tensor` holds: something was written to it, or to a part of it."""
        self._contents.drop(local(tensor))
