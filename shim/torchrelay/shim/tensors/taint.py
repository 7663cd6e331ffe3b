"""Follow what is computed from some tensors and what is written to them, through every function of torch that is called."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.tensors.following_mode import FollowingMode
from torchrelay.shim.adapters.tensors.storages import StorageNotes, unseen
from torchrelay.shim.tensors import exact_copies
from torchrelay.shim.tensors.exact_copies import ExactCopies, Overwritten
from torchrelay.shim.tensors.memory_ranges import MemoryRanges
from torchrelay.shim.tensors.tensor_versions import version_of, versions_of

MADE = "made."
"""What the names of sources begin with that a step has made for itself."""
ABOUT_FORM = frozenset(
    {"__len__", "__hash__", "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset"}
    | {
        "element_size",
        "is_contiguous",
        "is_floating_point",
        "is_complex",
        "is_conj",
        "is_neg",
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


class Watch(FollowingMode):
    """Follow some tensors, the sources.

    Raises StateMismatchError, into the script, where a number is read that depends on late content.

    `sources`: the tensors, by path. `late`: the paths of sources whose content is known not to be what the script expects. What is
    computed from late content is late, too.

    Each write to a source gives it another content. A content has a number, and sets of contents are bits of a number, since there
    are thousands of operations on what was made from thousands of parameters. A source that is overwritten whole has the content
    that it was overwritten with: so weights can be put aside, an average takes their place, and they come back.

    `strict`: a write to a source is an error at once. `comes_back`: content that was put aside before it made room is expected to
    be back in the end.
    """

    def __init__(
        self,
        sources: Mapping[str, torch.Tensor],
        late: Collection[str] = (),
        *,
        strict: bool = False,
        comes_back: bool = False,
    ) -> None:
        super().__init__()
        self._by_path = dict(sources)
        self._numbers = {path: number for number, path in enumerate(sources)}
        self._names = list(sources)
        """For each content, the path of the source that had it first."""
        self._present = list(range(len(sources)))
        """For each source, by its number, the content that it has."""
        self._made_from = [1 << number for number in range(len(sources))]
        """For each content, the contents that it was computed from, or itself where that is not known."""
        self._home = list(range(len(sources)))
        """For each source, its home: the content that its memory was right for, if the source ends with that content."""
        self._known: dict[int, tuple[torch.Tensor, list[int]]] = {}
        for path, tensor in sources.items():
            self._known.setdefault(id(tensor), (tensor, []))[1].append(self._numbers[path])
        self._memory = MemoryRanges(sources.values())
        self._derived = StorageNotes()
        self._copies = ExactCopies()
        self._elsewhere: set[int] = set()
        """Contents that some other tensor holds a copy of, too."""
        self._escaped: list[tuple[str, int]] = []
        self._late = 0
        self._strict = strict
        self._comes_back = comes_back
        self._given = frozenset(late)
        self.late(late)

    def late(self, paths: Iterable[str]) -> None:
        for path in paths:
            number = self._numbers.get(path)
            if number is not None:
                self._late |= self._made_from[self._present[number]] | self._made_from[self._home[number]]

    def late_unless_back(self) -> None:
        """Count, at the end, each source's home content as late where the source has something else now."""
        for present, home in zip(self._present, self._home):
            self._late |= 1 << home if present != home else 0

    def source(self, path: str) -> torch.Tensor:
        return self._by_path[path]

    def paths_of(self, tensor: torch.Tensor) -> list[str]:
        """Return the paths of the sources that share memory with the tensor."""
        return [self._names[number] for number in self._memory.shared(tensor)]

    def settle(self, path: str) -> None:
        """Note that from here on a source holds what the script expects. What was computed from it before does not."""
        number = self._numbers[path]
        self._home[number] = self._present[number] = self._new_content(path)

    def is_at_home(self, path: str) -> bool:
        """Return whether a source has the content again that its memory was right for."""
        number = self._numbers[path]
        return self._present[number] == self._home[number]

    def computed_from(self, tensor: torch.Tensor) -> str:
        """Return in words what is late of all that `tensor` was computed from.

        Empty where nothing is, and for a tensor that shares memory with a source.
        """
        return "" if self._is_source(tensor) else self._what(self._of(tensor))

    def certain(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note that these tensors hold what they held in the lost rank, whatever they were computed from.

        A recorded result was put into them.
        """
        with unseen():
            for tensor in tensors:
                self._copies.forget(tensor)
                for number in self._memory.shared(tensor):
                    if self._is_whole(number, tensor):
                        self._now_has(number, self._new_content(self._names[number]))
                if tensor.is_contiguous() and not self._is_source(tensor):
                    self._derived.forget(tensor)

    def check_escapes(self) -> None:
        """Raise StateMismatchError if a number was read that depends on late content."""
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
        touches = False
        for tensor in given:
            numbers = self._sources_of(tensor)
            bits |= self._contents(numbers) if numbers else self._derived.of(tensor)
            touches |= bool(numbers)
        if name in ABOUT_FORM or not (bits or touches):
            return func(*args, **kwargs)
        versions = versions_of(given)
        contents = {id(one.target): self._given_by(one) for one in exact_copies.overwritten(name, args, kwargs)}
        result = func(*args, **kwargs)
        returned = list(tensors_of(result))
        escapes = (result is not None and not returned) or name == "backward"
        results = [tensor for tensor in returned if id(tensor) not in contents]
        for tensor, version in zip(given, versions):
            if version < 0 or version_of(tensor) != version:
                content = contents.get(id(tensor), _OTHER)
                self._wrote(tensor, name, content)
                if content == _OTHER:
                    results.append(tensor)
                elif not self._is_source(tensor):
                    self._derived.forget(tensor)
                    escapes |= not self._derive(tensor, self._made_from[content])
        for tensor in results:
            escapes |= not self._derive(tensor, bits)
        if exact_copies.made(name, args, result) and (content := self._content_of(args[0])) != _OTHER:
            self._put_aside(result, content)
        if escapes:
            self._escaped.append((name, bits))
            self._check(name, bits)
        return result

    def _attribute(self, func: Any, name: str, args: tuple[Any, ...]) -> Any:
        """Read or set a tensor's attribute. Only setting `.data` needs a note.

        What `p.data` and `p.T` return is known by its memory, and `p.shape` says nothing of the content. `module.to(device)` sets
        the data of each parameter to what it has already.
        """
        attribute = getattr(func.__self__, "__name__", "")
        if name != "__set__" or attribute != "data":
            return func(*args)
        target, value = args
        content = self._content_of(value) if exact_copies.form_of(value) == exact_copies.form_of(target) else _OTHER
        result = func(*args)
        known = self._known.get(id(target))
        for number in known[1] if known is not None else ():
            self._memory.add(number, target)
        numbers = self._sources_of(target)
        if content == _OTHER or any(self._present[number] != content for number in numbers):
            self._wrote(target, "data", content)
            self._derive(target, self._of(value))
        return result

    def _wrote(self, tensor: torch.Tensor, name: str, content: int) -> list[str]:
        """Note that the tensor was written to. Return the paths of the sources that were written to.

        `content`: what the tensor holds now, if that is known.
        """
        numbers = self._sources_of(tensor)
        paths = [self._names[number] for number in sorted(numbers)]
        if paths and self._strict:
            raise StateMismatchError(
                f"{paths[0]} is written to after the optimizer step ({name}) by a rank whose tensors come "
                "from one that has reached the script's end: whether they have that in them cannot be told"
            )
        if not paths:
            self._copies.forget(tensor)
            if content != _OTHER:
                self._put_aside(tensor, content)
        for number in numbers:
            if content == _OTHER or not self._is_whole(number, tensor):
                self._has_other(self._names[number], name)
                self._now_has(number, self._new_content(self._names[number], late=True))
            else:
                self._elsewhere.add(content)
                self._now_has(number, content, is_copied=True)
        return paths

    def _put_aside(self, copy: torch.Tensor, content: int) -> None:
        self._copies.note(copy, content + 1)
        self._elsewhere.add(content)

    def _has_other(self, path: str, name: str) -> None:
        """Do nothing. A subclass learns here that a source was given a content that nobody knows."""

    def _now_has(self, number: int, content: int, *, is_copied: bool = False) -> None:
        """Note which content a source has. Its home content is late while it has another one, unless that is expected back."""
        self._present[number] = content
        home = self._home[number]
        if content == home and self._can_be_right(self._names[number]):
            self._late &= ~(1 << home)
        elif not (is_copied and self._comes_back and home in self._elsewhere):
            self._late |= 1 << home

    def _can_be_right(self, path: str) -> bool:
        """Return whether a source may have now the content that its memory was right for."""
        return path not in self._given

    def _new_content(self, path: str, *, late: bool = False) -> int:
        content = len(self._names)
        self._names.append(path)
        self._made_from.append(1 << content)
        if late:
            self._late |= 1 << content
        return content

    def _given_by(self, one: Overwritten) -> int:
        """Return the content that a tensor gets when it is overwritten whole."""
        source = one.source
        content = self._content_of(source) if source is not None and one.is_exact else _OTHER
        if content == _OTHER:
            content = self._new_content("")
            self._made_from[content] = self._of(source) if source is not None else 0
            if source is not None and one.is_exact and not self._is_source(source):
                self._put_aside(source, content)
        return content

    def _content_of(self, tensor: torch.Tensor) -> int:
        """Return which content the tensor holds bit for bit; _OTHER where that is not known, or where it holds a part of one."""
        numbers = self._memory.shared(tensor)
        if numbers:
            contents = {self._present[number] for number in numbers}
            is_whole = all(self._is_whole(number, tensor) for number in numbers)
            return contents.pop() if is_whole and len(contents) == 1 else _OTHER
        return self._copies.of(tensor) - 1

    def _is_whole(self, number: int, tensor: torch.Tensor) -> bool:
        source = self._by_path[self._names[number]]
        own = exact_copies.layout_of(tensor)
        return own is not None and exact_copies.layout_of(source) == own

    def _derive(self, tensor: torch.Tensor, bits: int) -> bool:
        """Note what the tensor was computed from. Return whether it can be followed. A source needs no note here."""
        if self._is_source(tensor):
            return True
        return self._derived.add(tensor, bits)

    def _of(self, tensor: torch.Tensor) -> int:
        """Return the contents that the tensor's content was computed from."""
        numbers = self._sources_of(tensor)
        return self._contents(numbers) if numbers else self._derived.of(tensor)

    def _contents(self, numbers: Iterable[int]) -> int:
        bits = 0
        for number in numbers:
            bits |= self._made_from[self._present[number]]
        return bits

    def _is_source(self, tensor: torch.Tensor) -> bool:
        return bool(self._sources_of(tensor))

    def _sources_of(self, tensor: torch.Tensor) -> set[int]:
        """Return the numbers of the sources that the tensor is, or shares memory with."""
        known = self._known.get(id(tensor))
        return {*self._memory.shared(tensor), *(known[1] if known is not None else ())}

    def _check(self, name: str, bits: int) -> None:
        what = self._what(bits)
        if what:
            raise StateMismatchError(
                f"the step reads {what} after its optimizer step ({name}): "
                "what a lost rank read there cannot be told any more"
            )

    def _what(self, bits: int) -> str:
        late = bits & self._late
        if not late:
            return ""
        path = self._names[(late & -late).bit_length() - 1]
        if path.startswith(MADE):
            return f"{path.removeprefix(MADE)}, which it has made for itself,"
        return "gradients" if path.startswith("gradient") else f"{path}, which it writes to,"


_OTHER = -1
"""A content that nobody knows."""
