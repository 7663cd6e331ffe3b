"""A `TorchFunctionMode` that changes nothing of what is computed.

`nn.MultiheadAttention` and `nn.TransformerEncoderLayer` leave their fused kernels, which round differently, where
`torch.overrides.has_torch_function` says that something is told of the call. Here it does not count what only follows.

Leans on that function being looked up in its module at each call, on `_get_current_function_mode_stack`, `_pop_mode`,
`_pop_mode_temporarily` and `_push_mode`. Seen on torch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from types import FrameType
from typing import Any

from torch import overrides
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode,
    _pop_mode_temporarily,
    _push_mode,
)

_OURS = "torchrelay."
_torchs_own = overrides.has_torch_function


class FollowingMode(TorchFunctionMode):
    def __enter__(self) -> Any:
        overrides.has_torch_function = _has_torch_function
        return super().__enter__()  # type: ignore[no-untyped-call]  # torch does not say its type

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        """Leave modes that the script has begun in the meantime on. Raises RuntimeError in a call that it is told of."""
        if not self.is_on():
            raise RuntimeError(f"{type(self).__name__} is told of a call, and cannot end")
        above: list[Any] = []
        while (mode := _pop_mode()) is not self:
            above.append(mode)
        for mode in reversed(above):
            _push_mode(mode)
        if not any(isinstance(mode, FollowingMode) for mode in _get_current_function_mode_stack()):
            overrides.has_torch_function = _torchs_own

    def is_on(self) -> bool:
        """Return whether the mode is told of the next call. It is not while it is told of one."""
        return any(mode is self for mode in _get_current_function_mode_stack())


def _has_torch_function(args: Iterable[Any]) -> bool:
    modes = _get_current_function_mode_stack()
    with ExitStack() as without:
        if all(isinstance(mode, FollowingMode) for mode in modes):
            for _ in modes:
                without.enter_context(_pop_mode_temporarily())
        return _torchs_own(args)


def is_ours(frame: FrameType | None) -> bool:
    """Return whether torchrelay called a function of torch, and not the script. `frame`: of a mode that is told of the call."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not (module == "torch" or module.startswith("torch.") or frame.f_code.co_name == "__torch_function__"):
            return bool(module.startswith(_OURS))
        frame = frame.f_back
    return False
