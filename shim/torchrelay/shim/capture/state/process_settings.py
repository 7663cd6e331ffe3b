"""Settings of the process, or of its training thread, that training changes: the default dtype, environment variables.

Set-up makes most of them in each process. So what counts is what differs from how set-up left them: a working folder, or a device,
that is another one in each process is left alone.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.cpython import environment
from torchrelay.shim.capture.state.process_wide import HeldByProcess

_FILL = "fill_uninitialized_memory"
_TINY = 5e-324
"""Smaller than any normal number: a thread that flushes such numbers takes it for zero."""


class _Setting(NamedTuple):
    """One setting. `read` returns a plain value."""

    read: Callable[[], Any]
    put: Callable[[Any], Any]


def _put_default_device(device: torch.device) -> None:
    torch.set_default_device(None if device == torch.device("cpu") else device)


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _put_deterministic(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _put_fill(value: bool) -> None:
    setattr(torch.utils.deterministic, _FILL, value)


def _matmul_precision() -> str | None:
    """Return the precision; None where the script sets it by each backend's own attribute, with which torch refuses to tell it."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _put_matmul_precision(value: str | None) -> None:
    if value is not None:
        torch.set_float32_matmul_precision(value)


def _cudnn() -> tuple[bool, bool, bool]:
    cudnn = torch.backends.cudnn
    return cudnn.enabled, cudnn.benchmark, cudnn.deterministic


def _put_cudnn(value: tuple[bool, bool, bool]) -> None:
    cudnn = torch.backends.cudnn
    cudnn.enabled, cudnn.benchmark, cudnn.deterministic = value


def _anomalies() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _put_anomalies(value: tuple[bool, bool]) -> None:
    torch.autograd.set_detect_anomaly(*value)


def _numpy_errors() -> tuple[tuple[str, str], ...]:
    """Return what numpy does on errors of floating point; empty where the script has no numpy."""
    numpy: Any = sys.modules.get("numpy")
    return tuple(numpy.geterr().items()) if hasattr(numpy, "geterr") else ()


def _put_numpy_errors(value: tuple[tuple[str, str], ...]) -> None:
    if value and "numpy" in sys.modules:
        sys.modules["numpy"].seterr(**dict(value))


def _working_folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # somebody has removed it
        return None


def _put_working_folder(folder: str | None) -> None:
    if folder is not None:
        try:
            os.chdir(folder)
        except OSError as e:
            raise StateMismatchError(
                f"training works in the folder {folder}, which this process cannot enter: {e}"
            ) from e


def _put_collector(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()


_SETTINGS = {
    "default dtype": _Setting(torch.get_default_dtype, torch.set_default_dtype),
    "default device": _Setting(torch.get_default_device, _put_default_device),
    "gradients enabled": _Setting(torch.is_grad_enabled, torch.set_grad_enabled),
    "number of threads": _Setting(torch.get_num_threads, torch.set_num_threads),
    "deterministic algorithms": _Setting(_deterministic, _put_deterministic),
    "uninitialized memory filled": _Setting(lambda: getattr(torch.utils.deterministic, _FILL), _put_fill),
    "precision of matrix products": _Setting(_matmul_precision, _put_matmul_precision),
    "cudnn enabled, benchmark, deterministic": _Setting(_cudnn, _put_cudnn),
    "denormal numbers flushed": _Setting(lambda: _TINY * 1.0 == 0.0, torch.set_flush_denormal),
    "anomalies detected, NaN checked": _Setting(_anomalies, _put_anomalies),
    "numpy's floating-point errors": _Setting(_numpy_errors, _put_numpy_errors),
    "working folder": _Setting(_working_folder, _put_working_folder),
    "recursion limit": _Setting(sys.getrecursionlimit, sys.setrecursionlimit),
    "garbage collection": _Setting(gc.isenabled, _put_collector),
}
_VARIABLE = "environment variable "


class ProcessSettings:
    """What training has changed of this process's settings, by name. An environment variable that it has removed is None."""

    def __init__(self) -> None:
        self._base: dict[str, Any] = {}
        """The settings as set-up left them, and what the training of a lost rank found before it changed it."""
        self._held: Mapping[Any, Any] = {}
        """The environment variables of that time, in the form in which they are compared."""
        self._carried: set[str] = set()
        """What was changed already by the lost rank that this process stands for."""
        self.holds = HeldByProcess()
        """What the process holds of the script's own beside variables."""
        self._latest: tuple[Mapping[Any, Any], dict[str, Any]] | None = None
        """What variables there were at the latest look that has found others, and what differs in them."""
        self.set_up_goes_on()

    def set_up_goes_on(self) -> None:
        """Count what is set by now as set-up's."""
        self._latest = None
        kept = {name: self._base.get(name) for name in self._carried}
        self._held = {**environment.variables()}
        variables = {_VARIABLE + name: value for name, value in environment.decoded(self._held).items()}
        self._base = {**_read(), **variables, **kept}

    def changed(self) -> dict[str, Any]:
        """Return what differs from how set-up left it."""
        base = self._base
        found = {name: value for name, value in _read().items() if value != base[name]}
        held = environment.variables()
        if self._carried or held != self._held:
            found |= self._changed_variables(held)
        return found

    def _changed_variables(self, held: Mapping[Any, Any]) -> dict[str, Any]:
        if self._latest is None or held != self._latest[0]:
            base = self._base
            now = {_VARIABLE + name: value for name, value in environment.decoded(held).items()}
            names = [name for name in {**base, **now} if name.startswith(_VARIABLE)]
            self._latest = {**held}, {name: now.get(name) for name in names if now.get(name) != base.get(name)}
        return self._latest[1]

    def put(self, changed: Mapping[str, Any]) -> None:
        """Put the settings to where set-up left them, but for these. Raises StateMismatchError where one cannot be put."""
        self._carried.update(changed)
        for name in {**self.changed(), **changed}:
            value = changed[name] if name in changed else self._base.get(name)
            if name not in _SETTINGS:
                _put_variable(name[len(_VARIABLE) :], value)
            elif value != _SETTINGS[name].read():
                _SETTINGS[name].put(value)


def _read() -> dict[str, Any]:
    return {name: setting.read() for name, setting in _SETTINGS.items()}


def _put_variable(name: str, value: str | None) -> None:
    if value is not None:
        os.environ[name] = value
    else:
        os.environ.pop(name, None)
