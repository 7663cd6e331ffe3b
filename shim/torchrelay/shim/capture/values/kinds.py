"""Tell how the walk treats an object of a type: by value, as a container, as an object with attributes, or not at all."""

from __future__ import annotations

import collections
import contextlib
import datetime
import decimal
import enum
import fractions
import functools
import itertools
import pathlib
import queue
import random
import sys
import threading
import types
import uuid
import weakref
from typing import Any

import torch
import torch.distributed

from torchrelay.shim.adapters.cpython import plain_iterators
from torchrelay.shim.adapters.cpython.call_caches import CallCache
from torchrelay.shim.adapters.cpython.csv_readers import CsvReader
from torchrelay.shim.adapters.cpython.shared_values import is_shared_value
from torchrelay.shim.capture.values.read_files import is_file_class
from torchrelay.shim.capture.values.replay_point import ReplayPoint
from torchrelay.shim.script.completed_collective import CompletedCollective
from torchrelay.shim.script.save_future import SaveFuture

PLAIN = frozenset(
    {int, float, str, bytes, bool, type(None), complex, range, slice, torch.dtype, torch.device, torch.Size}
)
"""Immutable, with nothing below: pickled as they are. The walk's fast path is one look-up in here."""

BY_VALUE = (
    enum.Enum,
    pathlib.PurePath,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.tzinfo,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
    frozenset,
    int,
    float,
    str,
    bytes,
    complex,
    torch.layout,
    torch.memory_format,
    type(Ellipsis),
    type(NotImplemented),
)

_WITHOUT_STATE = (
    types.ModuleType,
    types.CodeType,
    types.FrameType,
    types.TracebackType,
    types.GenericAlias,
    types.UnionType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.MethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    BaseException,
)
"""Set-up makes them anew in a joiner, and an iteration does not change them."""

_THROUGH = (
    types.MethodType,
    types.BuiltinFunctionType,
    functools.partial,
    staticmethod,
    classmethod,
    property,
    types.MappingProxyType,
    CsvReader,
)
"""Without state of their own; what they stand for may have some."""

_MACHINERY = frozenset(
    {
        "_abc",
        "_csv",
        "_io",
        "_queue",
        "_thread",
        "_weakref",
        "_weakrefset",
        "abc",
        "asyncio",
        "concurrent",
        "contextlib",
        "ctypes",
        "importlib",
        "inspect",
        "io",
        "logging",
        "mlflow",
        "multiprocessing",
        "psutil",
        "queue",
        "re",
        "select",
        "selectors",
        "signal",
        "socket",
        "subprocess",
        "tempfile",
        "tensorboard",
        "threading",
        "torchrelay",
        "typing",
        "typing_extensions",
        "wandb",
        "warnings",
        "weakref",
        "zipfile",
    }
)
_HANDLES = (
    ("socket", "socket"),
    ("subprocess", "Popen"),
    ("multiprocessing.process", "BaseProcess"),
    ("multiprocessing.connection", "_ConnectionBase"),
    ("concurrent.futures", "Executor"),
)
"""What the script speaks to through them is elsewhere. By module and name: only what is imported can be met."""
_TORCH_MACHINERY = (
    "torch.distributed.",
    "torch._C",
    "torch.cuda",
    "torch.autograd",
    "torch.fx",
    "torch._dynamo",
    "torch._inductor",
    "torch.profiler",
    "torch.utils.tensorboard",
    "torch.utils.hooks",
    "torch.storage",
    "torch.jit",
    "torch._ops",
)
_TORCH_STATE = ("torch.distributed.algorithms.", "torch.distributed.elastic.utils.data.")
"""Averagers of models, which count the steps, what communication hooks keep, samplers: in Python, and training changes it."""
SIGNALS = (threading.Event, threading.Semaphore)
"""What training sets or counts by itself is state. What threads speak by is told to the report."""
_WORK = getattr(torch.distributed, "Work", None)
"""Not there in a torch that was built without communication."""


@enum.unique
class Kind(enum.IntEnum):
    PLAIN = 0
    OPAQUE = 1
    UNKNOWN = 2
    """An object of an unknown type: carried if it pickles, and otherwise named in the protection report."""
    LIST = 3
    DICT = 4
    SET = 5
    DEQUE = 6
    TUPLE = 7
    ATTRS = 8
    TENSOR = 9
    MODULE = 10
    OPTIMIZER = 11
    LOADER = 12
    LOADER_ITER = 13
    DATASET = 14
    TORCH_GENERATOR = 15
    PYTHON_RANDOM = 16
    NUMPY_RANDOM = 17
    NDARRAY = 18
    BYTEARRAY = 19
    FRAME = 20
    GLOBALS = 21
    PARAM_GROUP = 22
    OPTIMIZER_STATE = 23
    DDP = 24
    REPLAY_POINT = 25
    GONE = 26
    """A place that holds no object any more."""
    FUNCTION = 27
    CLASS = 28
    THROUGH = 29
    """A bound method and the like: looked through, as tuples are."""
    CYCLE = 30
    GENERATOR = 31
    PROCESS_GROUP = 35
    OBJECT_ARRAY = 36
    """An array of numpy that holds objects."""
    HANDLE = 40
    """A handle for something outside of the process's objects, such as a socket: named in the protection report."""
    PROMISE = 32
    """The future of a save that a thread does, known by which save that is, or the handle of a collective, which is complete."""
    ITERATOR = 33
    """An iterator of Python's own, of which it is known where it stands."""
    LOOPS = 34
    """The iterators of the running loops."""
    SHARED_VALUE = 37
    """Numbers that other processes may share."""
    FILE = 39
    """A file that may be read from, or one in memory."""
    QUEUE = 41
    """A queue of Python's, such as one that a thread fills."""
    LED = 42
    """An iterator of set-up that a new process asks as often as the lost rank has."""
    CALLS = 43
    """What a function keeps of its calls."""
    WEAK = 44
    """A container that holds its keys, values or elements weakly."""
    HELD = 45
    """What of the script's own torch and `logging` hold for the whole process."""
    COMPOSITE = 46
    """A tensor that is made of others: sparse, quantized."""
    SETTINGS = 38
    """What training has changed of the process's settings."""


DATA = (Kind.LOADER, Kind.DATASET)
"""Kinds whose content is not carried. The way that leads to one may go over an iterator, or a loader, that training has made."""


FRAME = Kind.FRAME
GLOBALS = Kind.GLOBALS
GONE = Kind.GONE
LIST = Kind.LIST
DICT = Kind.DICT
TUPLE = Kind.TUPLE
ATTRS = Kind.ATTRS
TENSOR = Kind.TENSOR
PARAM_GROUP = Kind.PARAM_GROUP
"""Members for what runs in each step: to get one from its class takes five times as long as from a module."""


def _numpy_kind(cls: type) -> Kind | None:
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or _module_of(cls).split(".")[0] != "numpy":
        return None
    if issubclass(cls, numpy.generic):
        return Kind.PLAIN
    if issubclass(cls, numpy.ndarray):
        return Kind.NDARRAY
    if cls.__name__ in ("Generator", "RandomState", "SeedSequence") or cls.__mro__[1].__name__ == "BitGenerator":
        return Kind.NUMPY_RANDOM
    if hasattr(cls, "__next__"):
        return Kind.UNKNOWN
    is_written_in_python = cls.__dictoffset__ != 0 and hasattr(cls, "__weakref__")
    return Kind.ATTRS if is_written_in_python else Kind.OPAQUE  # a polynomial, a vectorized function


def _torch_kind(cls: type) -> Kind | None:
    from torch.utils.data import dataloader

    for base, kind in (
        (torch.Tensor, Kind.TENSOR),
        (torch.nn.parallel.DistributedDataParallel, Kind.DDP),
        (torch.nn.Module, Kind.MODULE),
        (torch.optim.Optimizer, Kind.OPTIMIZER),
        (dataloader.DataLoader, Kind.LOADER),
        (dataloader._BaseDataLoaderIter, Kind.LOADER_ITER),
        (torch.utils.data.Dataset, Kind.DATASET),
        (torch.Generator, Kind.TORCH_GENERATOR),
    ):
        if issubclass(cls, base):
            return kind
    if torch.distributed.is_available() and issubclass(cls, torch.distributed.ProcessGroup):
        return Kind.PROCESS_GROUP
    return None


_CONTAINERS: tuple[tuple[type, Kind], ...] = (
    (list, Kind.LIST),
    (dict, Kind.DICT),
    (set, Kind.SET),
    (collections.deque, Kind.DEQUE),
    (tuple, Kind.TUPLE),
    (bytearray, Kind.BYTEARRAY),
    (random.Random, Kind.PYTHON_RANDOM),
    (itertools.cycle, Kind.CYCLE),
    (types.GeneratorType, Kind.GENERATOR),
    (queue.Queue, Kind.QUEUE),
    (CallCache, Kind.CALLS),
    (weakref.WeakSet, Kind.WEAK),
    (weakref.WeakValueDictionary, Kind.WEAK),
    (weakref.WeakKeyDictionary, Kind.WEAK),
    *((cls, Kind.ITERATOR) for cls in plain_iterators.TYPES - {itertools.cycle}),
)


_known: dict[type, Kind] = {}


def kind_of(cls: type) -> Kind:
    """Return the kind of instances of `cls`. The answer for a type never changes."""
    kind = _known.get(cls)
    if kind is None:
        kind = _known[cls] = _find(cls)
    return kind


def _find(cls: type) -> Kind:  # noqa: C901 - one question after the other, in the order that decides
    if cls in PLAIN or issubclass(cls, BY_VALUE):
        return Kind.UNKNOWN if _may_have_attributes(cls) else Kind.PLAIN
    if issubclass(cls, ReplayPoint):
        return Kind.REPLAY_POINT
    if issubclass(cls, (SaveFuture, CompletedCollective)) or (_WORK is not None and issubclass(cls, _WORK)):
        return Kind.PROMISE
    found = _torch_kind(cls) or _numpy_kind(cls)
    if found is not None:
        return found
    for base, kind in _CONTAINERS:
        if issubclass(cls, base):
            return kind
    if issubclass(cls, _WITHOUT_STATE):
        return Kind.OPAQUE
    for bases, kind in ((types.FunctionType, Kind.FUNCTION), (type, Kind.CLASS), (_THROUGH, Kind.THROUGH)):
        if issubclass(cls, bases):
            return kind
    if _is_handle(cls):
        return Kind.HANDLE
    if is_file_class(cls):
        return Kind.FILE
    if issubclass(cls, (threading.local, *SIGNALS)) or issubclass(
        cls, contextlib.ExitStack | contextlib.AsyncExitStack
    ):
        return Kind.ATTRS
    if is_shared_value(cls):
        return Kind.SHARED_VALUE
    module = _module_of(cls)
    if is_machinery(module) and not _says_that_it_has_state(cls):
        return Kind.OPAQUE
    if module == "argparse" and cls.__name__ != "Namespace":
        return Kind.OPAQUE
    if _keeps_state_in_c(cls):
        return Kind.UNKNOWN
    if getattr(cls, "__dictoffset__", 0) or any("__slots__" in vars(c) for c in cls.__mro__):
        return Kind.ATTRS
    return Kind.UNKNOWN


_OWN_PICKLING = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__reduce_cython__")


def _keeps_state_in_c(cls: type) -> bool:
    """Return whether a package's class has more than attributes: a base of the same package, in C, that says how to pickle it.

    So it is with the blocks of a data frame of pandas, or a tree of neighbours. Classes that a script derives from such are not
    meant: others may hold what their attributes lead to.
    """
    root = _module_of(cls).partition(".")[0]
    if root in sys.stdlib_module_names or root in _IN_C_BUT_KNOWN:
        return False
    bases = [base for base in cls.__mro__ if _module_of(base).partition(".")[0] == root]
    return any(
        name in vars(base) and not isinstance(vars(base)[name], types.FunctionType)
        for base in bases
        for name in _OWN_PICKLING
    )


_IN_C_BUT_KNOWN = frozenset({"__main__", "numpy", "torch", "torchrelay"})


def _module_of(cls: type) -> str:
    """Return the name of the class's module. A class of classes in C may have a descriptor there, for its own instances."""
    module = cls.__module__
    return module if type(module) is str else ""


def _may_have_attributes(cls: type) -> bool:
    """Return whether a number or a string of the class may have attributes beside its value, such as where it comes from."""
    is_value = issubclass(cls, (int, float, str, bytes, complex)) and not issubclass(cls, enum.Enum)
    return is_value and cls.__dictoffset__ != 0


def is_machinery(module: str) -> bool:
    """Return whether objects of a module's classes are machinery, whose state is no training's."""
    if module.startswith(_TORCH_STATE):
        return False
    return module.split(".")[0] in _MACHINERY or module.startswith(_TORCH_MACHINERY)


def _says_that_it_has_state(cls: type) -> bool:
    """Return whether the class itself says that it has state, as a gradient scaler: torch has some in packages of its machinery."""
    return all(callable(getattr(cls, name, None)) for name in ("state_dict", "load_state_dict"))


def _is_handle(cls: type) -> bool:
    handles = (getattr(sys.modules.get(module), name, None) for module, name in _HANDLES)
    return any(isinstance(handle, type) and issubclass(cls, handle) for handle in handles)


IMPLIED = {Kind.TENSOR: torch.Tensor, Kind.GLOBALS: dict, Kind.FRAME: types.FrameType}
"""Classes that are not written down: most steps make tensors anew, and to pickle a class takes longer than the rest of it."""
