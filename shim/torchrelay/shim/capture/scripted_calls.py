"""Repeat how functions of TorchScript were called: what they compute depends on it, as on a random generator.

The first call of a function is profiled. Those after it run code that was made for what was seen then, and the two round
differently, gradients above all. A new process has made no call yet, and a step that is done again has made one too many. Both
forget what was compiled, and repeat the calls up to the boundary with made-up numbers of the recorded forms.
"""

from __future__ import annotations

import contextlib
import pickle
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.torchscript import functions, modules
from torchrelay.shim.capture import rng
from torchrelay.shim.capture.values import small

_UNTIL_STEADY = 3
"""How many calls of one form it takes until all is compiled for it: profiled, compiled, the compiled backward profiled as well."""
_FORMS = 16
"""How many forms of calls a function compiles for: nothing for further ones (torch's strategy has 12)."""
_AUTOCAST = ("cpu", "cuda")
_NO_CASTS = (None, None)
_LOW = 0.1
_HIGH = 0.9
_PLAIN = frozenset({bool, str, int, float, complex, type(None), torch.dtype, torch.device})


class TensorArgument(NamedTuple):
    """The form of a tensor. `value`: of a small one that holds no fractions, since these steer what is done."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str
    requires_grad: bool
    value: small.TensorValue | None


class Call(NamedTuple):
    """A call that had an effect. `context`: as `_context` returns it. `training`: of the modules of a method, by path."""

    function: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    context: tuple[Any, ...]
    training: tuple[tuple[str, bool], ...]


class ScriptedCalls:
    """Keep the calls of this process that had an effect on what is compiled, in their order."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._times: dict[str, dict[Any, int]] = {}
        self._known: dict[int, tuple[weakref.ref[Any], str]] = {}
        """Objects by which functions were called, by id."""
        self._written: tuple[Any, bytes] = None, b""
        self._is_repeating = False

    def __len__(self) -> int:
        return len(self._calls)

    def called(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note a call that begins."""
        if self._is_repeating or functions.is_traced():
            return
        name = self._name_of(function)
        times = self._times.setdefault(name, {})
        context = _context()
        key = _key(args), _key(kwargs) if kwargs else (), context
        known = times.get(key, 0)
        if known >= _UNTIL_STEADY or (known == 0 and len(times) >= _FORMS):
            return
        times[key] = known + 1
        kept = {k: _form(v) for k, v in kwargs.items()}
        self._calls.append(Call(name, tuple(map(_form, args)), kept, context, _training(function)))

    def _name_of(self, function: Any) -> str:
        held, name = self._known.get(id(function), (None, ""))
        if held is None or held() is not function:
            functions.check_supported(function)
            name = functions.name_of(function)
            self._known[id(function)] = weakref.ref(function), name
        return name

    def written(self) -> bytes:
        """Return for a journal all calls so far of functions that still exist. Tracing leaves some behind."""
        if not self._calls:
            return b""
        self._known = {key: (held, name) for key, (held, name) in [*self._known.items()] if held() is not None}
        names = {name for _, name in self._known.values()}
        if self._written[0] != (len(self._calls), names):
            calls = [call for call in self._calls if call.function in names]
            self._written = (len(self._calls), names), pickle.dumps(calls, pickle.HIGHEST_PROTOCOL)
        return self._written[1]

    def go_back(self, count: int) -> None:
        """Compile anew what calls after the first `count` ones had an effect on. Raises StateMismatchError."""
        changed = {call.function for call in self._calls[count:]}
        if changed:
            calls = self._calls[:count]
            self._repeat([call for call in calls if call.function in changed], changed)
            self._know(calls)

    def take_over(self, written: bytes) -> None:
        """Become as the process that has written these calls. Raises StateMismatchError."""
        calls: list[Call] = pickle.loads(written) if written else []
        if calls != self._calls:
            self._repeat(calls, {call.function for call in [*calls, *self._calls]})
            self._know(calls)

    def _know(self, calls: list[Call]) -> None:
        self._calls = calls
        self._times = {}
        for call in calls:
            key = _key(call.args), _key(call.kwargs) if call.kwargs else (), call.context
            times = self._times.setdefault(call.function, {})
            times[key] = times.get(key, 0) + 1

    def _repeat(self, calls: Sequence[Call], changed: set[str]) -> None:
        known = functions.all_functions()
        for name in changed & known.keys():
            functions.forget_compiled(known[name])
        generators = rng.capture()
        self._is_repeating = True
        try:
            for call in calls:
                function = known.get(call.function)
                if function is None:
                    raise StateMismatchError(f"this process has not compiled {call.function} of TorchScript")
                self._name_of(function)
                _repeat(function, call)
        finally:
            self._is_repeating = False
            rng.restore(generators)


def _key(value: Any) -> Any:
    """Return what compiled code depends on, for an argument or a recorded one. Numbers are taken as they come."""
    cls = type(value)
    if cls is TensorArgument:
        kind = torch.device(value.device).type
        return _key_of_tensor(value.dtype, value.requires_grad, kind, torch.Size(value.shape))
    if isinstance(value, torch.Tensor):
        return _key_of_tensor(
            value.dtype, value.requires_grad, "cpu" if value.is_cpu else value.device.type, value.shape
        )
    if isinstance(value, (tuple, list)):
        return isinstance(value, list), *map(_key, value)
    if cls is dict:
        return cls, *((key, _key(part)) for key, part in value.items())
    return value if cls in (bool, str, type(None)) else cls


def _key_of_tensor(dtype: torch.dtype, requires_grad: bool, kind: str, shape: torch.Size) -> Any:
    return dtype, requires_grad, kind, shape if functions.goes_by_shape(kind) else len(shape)


def _form(value: Any) -> Any:
    cls = type(value)
    if isinstance(value, torch.Tensor):
        plain = value.detach()
        is_kept = not (plain.is_floating_point() or plain.is_complex()) and small.is_small(plain)
        kept = small.take(plain) if is_kept else None
        strides = plain.stride() if plain.layout is torch.strided else ()
        return TensorArgument(plain.dtype, tuple(plain.shape), strides, str(plain.device), value.requires_grad, kept)
    if isinstance(value, (tuple, list)):  # named ones are given as plain ones
        return [*map(_form, value)] if isinstance(value, list) else tuple(map(_form, value))
    if cls is dict:
        return {key: _form(part) for key, part in value.items()}
    return value if cls in _PLAIN else _Unknown(cls.__name__)


class _Unknown(NamedTuple):
    """An argument that a new process cannot be given."""

    cls: str


def _context() -> tuple[Any, ...]:
    casts: tuple[Any, ...] = _NO_CASTS
    if functions.is_any_autocast_on():
        casts = tuple(torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in _AUTOCAST)
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), casts


def _training(function: Any) -> tuple[tuple[str, bool], ...]:
    if not functions.is_method(function):
        return ()
    return tuple(
        (path, part.getattr("training")) for path, part in modules.tree(function.owner) if part.hasattr("training")
    )


def _repeat(function: Any, call: Call) -> None:
    with _as_in(call.context), _kept_as_it_is(function, dict(call.training)):
        args = _made_up(call.args)
        kwargs = _made_up(call.kwargs)
        found = functions.call(function, args, kwargs)
        outputs = [t for t in _tensors(found) if t.requires_grad and t.grad_fn is not None]
        if outputs:
            inputs = [*_tensors(args), *_tensors(kwargs), *_parameters(function)]
            leaves = [t for t in inputs if t.requires_grad and t.is_leaf]
            torch.autograd.grad(outputs, leaves, [torch.ones_like(t) for t in outputs], allow_unused=True)


def _made_up(form: Any) -> Any:
    if isinstance(form, TensorArgument):
        return _tensor(form)
    if isinstance(form, _Unknown):
        raise StateMismatchError(f"a function of TorchScript is called with a {form.cls}, which cannot be made up")
    if type(form) in (tuple, list):
        return type(form)(map(_made_up, form))
    if type(form) is dict:
        return {key: _made_up(part) for key, part in form.items()}
    return form


def _tensor(form: TensorArgument) -> torch.Tensor:
    if form.value is not None:
        return small.build(form.value)
    with torch.no_grad():
        if 0 in form.strides or not form.strides:
            made = torch.empty(form.shape, dtype=form.dtype, device=form.device)
        else:
            made = torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device=form.device)
        if made.is_floating_point() and not made.is_meta:
            made.uniform_(_LOW, _HIGH)
        else:
            made.zero_()
    return made.requires_grad_(form.requires_grad)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        yield from _tensors([*value.values()])


def _parameters(function: Any) -> Iterator[torch.Tensor]:
    if functions.is_method(function):
        for _, part in modules.tree(function.owner):
            names = (name for name, is_parameter in modules.attributes(part).items() if is_parameter)
            yield from _tensors([*map(part.getattr, names)])  # those that are None are among the names


@contextlib.contextmanager
def _as_in(context: tuple[Any, ...]) -> Iterator[None]:
    with_grad, inference, casts = context
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(inference))
        stack.enter_context(torch.set_grad_enabled(with_grad))
        for kind, dtype in zip(_AUTOCAST, casts):
            if dtype is not None or torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=dtype is not None))
        yield


@contextlib.contextmanager
def _kept_as_it_is(function: Any, training: dict[str, bool]) -> Iterator[None]:
    """Let a method's modules be in training or not, and put all that they hold back in the end."""
    kept: list[tuple[Any, str, Any, torch.Tensor | None]] = []
    if functions.is_method(function):
        for path, part in modules.tree(function.owner):
            for name, is_parameter in modules.attributes(part).items():
                if not is_parameter:
                    held = part.getattr(name)
                    kept.append((part, name, held, held.detach().clone() if isinstance(held, torch.Tensor) else None))
            if path in training:
                part.setattr("training", training[path])
    try:
        yield
    finally:
        for part, name, held, content in kept:
            part.setattr(name, held)
            if content is not None:
                with torch.no_grad():
                    held.copy_(content)
