"""Let built-in functions and methods do something else for a while, though they stay the objects that they are.

A script that holds `os.urandom` under a name of its own (`from os import urandom`) holds the same object. When the diversion ends
nothing of it is left: no wrapper, no cost.

A built-in function is a `PyCFunctionObject`: behind the object's header a pointer to its definition (name, C function, flags,
documentation), the object that the C function is given as `self`, the module, a list of weak references, and the C function of the
vectorcall protocol. A diverted one has a definition whose C function is `PyObject_Call`, and a callable as `self`. That is a
module, as before, so that the function prints and pickles as always. Methods of static types are exchanged in the type's own
dictionary. Seen on CPython 3.10 to 3.13; each function is compared with what it says of itself before it is touched.
"""

from __future__ import annotations

import ctypes
import gc
import platform
from collections.abc import Callable
from types import BuiltinFunctionType, ModuleType
from typing import Any

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.script.hidden_frames import hide_our_frames

_VARARGS_AND_KEYWORDS = 3


class _Definition(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


class _Function(ctypes.Structure):
    _fields_ = [
        ("definition", ctypes.POINTER(_Definition)),
        ("self", ctypes.c_void_p),
        ("module", ctypes.c_void_p),
        ("weak_references", ctypes.c_void_p),
        ("vectorcall", ctypes.c_void_p),
    ]


class _StandIn(ModuleType):
    def __init__(self, name: str, call: Callable[..., Any]) -> None:
        super().__init__(name)
        self.__dict__["call"] = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.__dict__["call"](*args, **kwargs)
        except BaseException as e:
            hide_our_frames(e)
            raise


def _fields(function: BuiltinFunctionType) -> _Function:
    return _Function.from_address(id(function) + object.__basicsize__)


def _copy_of(fields: _Function) -> Any:
    make = ctypes.PyDLL(None).PyCMethod_New
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p] * 4
    return make(ctypes.cast(fields.definition, ctypes.c_void_p).value, fields.self, fields.module, None)


def can_divert(function: Any) -> bool:
    """Return whether `divert` knows how this object is built."""
    if platform.python_implementation() != "CPython" or type(function) is not BuiltinFunctionType:
        return False
    if type(function).__basicsize__ != object.__basicsize__ + ctypes.sizeof(_Function):
        return False
    fields = _fields(function)
    if not fields.definition or fields.self != id(function.__self__):
        return False
    name = fields.definition.contents.name
    return isinstance(name, bytes) and name == function.__name__.encode()


class Diversions:
    """Diversions in force until `end`, which may be called several times, and in a forked child."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._kept: list[Any] = []
        """What diverted functions point to. Kept for good: another thread may be in the middle of a call."""

    def divert(self, function: Any, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Let `make(original)` be called in the function's place. Raises UnsupportedError for an unknown kind."""
        if not can_divert(function):
            raise UnsupportedError(f"{function!r} is built otherwise than CPython's built-in functions are known to be")
        fields = _fields(function)
        before = _Function.from_buffer_copy(fields)
        original = _copy_of(fields)
        stand_in = _StandIn(getattr(function.__self__, "__name__", function.__name__), make(original))
        call = ctypes.cast(ctypes.PyDLL(None).PyObject_Call, ctypes.c_void_p).value
        known = fields.definition.contents
        definition = _Definition(known.name, call, _VARARGS_AND_KEYWORDS, known.doc)
        self._kept += [function, original, stand_in, definition, before]
        fields.vectorcall = None
        fields.self = id(stand_in)
        fields.definition = ctypes.pointer(definition)

        def undo() -> None:
            fields.definition = before.definition
            fields.self = before.self
            fields.vectorcall = before.vectorcall

        self._undo.append(undo)

    def divert_method(self, cls: type, name: str, make: Callable[[Any], Any]) -> None:
        """Put `make(original)` in the place of `original` in the dictionary of `cls`, also of a static type."""
        (namespace,) = gc.get_referents(cls.__dict__)
        if type(namespace) is not dict or name not in namespace:
            raise UnsupportedError(f"{cls.__qualname__}.{name} is not where types are known to keep their methods")
        original = namespace[name]
        modified = ctypes.PyDLL(None).PyType_Modified

        def put(value: Any) -> None:
            namespace[name] = value
            modified(ctypes.py_object(cls))

        put(make(original))
        self._undo.append(lambda: put(original))

    def end(self) -> None:
        while self._undo:
            self._undo.pop()()
