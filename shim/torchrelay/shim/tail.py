"""The rest of a step after its optimizer step, gone through by a joiner whose donor is through with it already.

Tensors that this part writes (an average of the weights) are the donor's as of the next boundary: they are put back at that
boundary. What is read from them meanwhile is not what the lost rank read, so it must not leave the device: `Watch` sees to that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.host_state import HostState
from torchrelay.shim.late_writes import REBOUND, UNKNOWN

_ABOUT_FORM = frozenset(
    {"__get__", "__len__", "__hash__", "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset"}
    | {
        "element_size",
        "is_contiguous",
        "is_floating_point",
        "is_complex",
        "is_signed",
        "type",
        "get_device",
        "is_shared",
    }
    | {"is_pinned", "is_same_size", "is_tensor", "is_storage", "data_ptr", "has_names", "__dir__"}
)
"""Functions of a tensor whose answer does not depend on its content."""


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


class Watch(TorchFunctionMode):
    """Follows what is computed from some tensors; `escaped` names what was done to get at numbers."""

    def __init__(self, sources: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._sources = {id(t): t for t in sources}
        self.derived: dict[int, torch.Tensor] = {}
        self.escaped: list[str] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        given = list(_tensors((args, kwargs)))
        if name in _ABOUT_FORM or not any(self._from_source(t) for t in given):
            return func(*args, **kwargs)
        versions = [t._version for t in given]
        result = func(*args, **kwargs)
        made = list(_tensors(result))
        written = [t for t, version in zip(given, versions) if t._version != version]
        for tensor in (*made, *written):
            if id(tensor) not in self._sources:
                self.derived[id(tensor)] = tensor
        if result is not None and not made:
            self.escaped.append(name)
        return result

    def _from_source(self, tensor: torch.Tensor) -> bool:
        base = tensor._base
        return any(id(t) in self._sources or id(t) in self.derived for t in (tensor, base) if t is not None)


class Tail:
    """`own`: all tensors by path, with the donor's content; `late`: how often the donor has written to which of them.

    `gradients`: of the shadow step, which are this rank's own and not the mean over all ranks.
    """

    def __init__(
        self, own: Mapping[str, torch.Tensor], late: Mapping[str, int], gradients: Iterable[torch.Tensor] = ()
    ) -> None:
        self._own = dict(own)
        self._late = dict(own) if UNKNOWN.keys() & late.keys() else {path: own[path] for path in late if path in own}
        self._times = late
        self._kept = {path: tensor.detach().clone() for path, tensor in self._late.items()}
        self._versions = {path: tensor._version for path, tensor in own.items()}
        self.watch = Watch([*self._late.values(), *gradients])
        self.watch.__enter__()  # type: ignore[no-untyped-call]  # torch does not say its type

    def leave(self) -> None:
        self.watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # the same

    def put_back(self, state: HostState) -> None:
        """Where the donor stands. `state`: what training can get at there.

        Raises StateMismatchError where the lost rank's state at that place cannot be known for sure.
        """
        self._check_writes()
        if self.watch.escaped:
            raise StateMismatchError(
                f"the step reads {self._what()} after its optimizer step ({self.watch.escaped[0]}): "
                "what a lost rank read there cannot be told any more"
            )
        late = set(map(id, self._late.values())) | {id(t) for p, t in state.large.items() if f"value.{p}" in self._late}
        if any(number in state.index and number not in late for number in self.watch.derived):
            raise StateMismatchError(f"the step keeps what it computed from {self._what()} after its optimizer step")
        with torch.no_grad():
            for path, kept in self._kept.items():
                state.large.get(path.removeprefix("value."), self._own[path]).copy_(kept)

    def _what(self) -> str:
        return f"gradients or {min(self._late)}, which it writes to," if self._late else "gradients"

    def _check_writes(self) -> None:
        for path, tensor in self._own.items():
            times = tensor._version - self._versions[path]
            expected = self._times.get(path, 0)
            if REBOUND in (expected, *self._times.values()) and path in self._late:
                continue
            if times != expected:
                raise StateMismatchError(
                    f"{path} was written {times} times since the optimizer step, and {expected} times by the donor"
                )
