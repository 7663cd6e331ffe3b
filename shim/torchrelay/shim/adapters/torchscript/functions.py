"""Tell of calls of TorchScript's functions and methods, and forget what was compiled for them.

A function keeps what was compiled for it; methods of modules share it with all modules of the same type. Python calls them by
`__call__` of `torch._C.ScriptFunction` and `ScriptMethod`, and `_debug_flush_compilation_cache` forgets what was compiled, as if
nobody had called. Seen on torch 2.13.0 and 2.14.1.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.jit._script import RecursiveScriptModule

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.script.hidden_frames import hide_all

_CLASSES: tuple[Any, ...] = (torch._C.ScriptFunction, torch._C.ScriptMethod)
_PLAIN = {cls: cls.__call__ for cls in _CLASSES}
_OLD_EXECUTOR = "Not Implemented for Legacy Executor"
_FLUSH = "_debug_flush_compilation_cache"


def check_supported(function: Any) -> None:
    """Raise UnsupportedError where this torch cannot forget what it has compiled for such a function."""
    if not hasattr(function, _FLUSH):
        what = type(function).__name__
        raise UnsupportedError(
            f"the script calls TorchScript, and with torch {torch.__version__} a {what} cannot be compiled anew for a new process"
        )


def watch(called: Callable[[Any, tuple[Any, ...], dict[str, Any]], None]) -> None:
    """Call `called` with the function, its positional and its named arguments before each call from Python."""
    for cls, plain in _PLAIN.items():
        cls.__call__ = _told(called, plain)


def _told(called: Callable[..., None], plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def __call__(function: Any, *args: Any, **kwargs: Any) -> Any:
        called(function, args, kwargs)
        try:
            return plain(function, *args, **kwargs)
        except BaseException as error:
            hide_all(error)
            raise

    return __call__


def call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the function without telling of the call."""
    return _PLAIN[type(function)](function, *args, **kwargs)


def forget_compiled(function: Any) -> None:
    """Forget what was compiled for the function.

    Under TorchScript's old executor (`torch._C._jit_set_profiling_executor(False)`) that does not depend on earlier calls: it is
    compiled once for each form of its arguments, and there is nothing to forget.
    """
    try:
        getattr(function, _FLUSH)()
    except RuntimeError as error:
        if _OLD_EXECUTOR not in str(error):
            raise


def is_traced() -> bool:
    """Return whether the running code is being traced: then no compiled code runs."""
    return torch._C._get_tracing_state() is not None


def is_any_autocast_on() -> bool:
    """Return whether some device type casts: that is cheaper than to ask for each of them."""
    return bool(torch._C._is_any_autocast_enabled())


def goes_by_shape(device: str) -> bool:
    """Return whether code for this type of device is compiled for the shapes that were seen: where kernels are fused."""
    return device != "cpu" or torch._C._jit_can_fuse_on_cpu()


def is_method(function: Any) -> bool:
    """Return whether the function belongs to a module."""
    return type(function) is torch._C.ScriptMethod


def name_of(function: Any) -> str:
    """Return the name under which the function was compiled.

    It is the same in each process that has compiled the same in the same order.
    """
    if is_method(function):
        return f"{function.raw_owner._type().qualified_name()}.{function.name}"
    name: str = function.qualified_name
    return name


def all_functions() -> dict[str, Any]:
    """Return the compiled functions of this process by name. For a method it is the one of some module."""
    found: dict[str, Any] = {}
    for obj in gc.get_objects():
        cls = type(obj)
        if cls is torch._C.ScriptFunction:
            found.setdefault(name_of(obj), obj)
        elif issubclass(cls, RecursiveScriptModule) and "_c" in obj.__dict__:
            for method in _methods(obj):
                found.setdefault(name_of(method), method)
    return found


def _methods(module: Any) -> Iterator[Any]:
    """Yield the module's methods: its own objects, by which the script calls them, where it has some."""
    for name in module._c._method_names():
        own = getattr(module, name, None)
        yield own if is_method(own) else module._c._get_method(name)
