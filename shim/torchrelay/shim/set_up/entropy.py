"""Random numbers that set-up draws without a seed, or with a seed of its own making: a joiner draws the same.

The generators that a process begins with (Python's, numpy's, torch's) are seeded from a key, which is drawn at random when
the rank starts, and handed on to a joiner. What set-up draws from the system (`os.urandom`, and so `secrets`, `uuid4`,
`numpy.random.default_rng()`) is written down. So is each seed that a generator is given: it may have been made of the time,
a process id or a hash. Not covered: C code that asks the system by itself.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from torchrelay.shim.adapters.cpython.diverted import Diversions
from torchrelay.shim.set_up.outside import Outside, asking, is_own, key_of

KEY_BYTES = 32
_TORCH = ("torch.random", "torch._compile", "torch._dynamo")
"""What is between a script that calls `torch.manual_seed` and the generator."""

_LOOKS_FOR_A_FOLDER = "_get_default_tempdir"
"""In tempfile: tries once, with a name of its own, where files can be written."""
_BETWEEN_PROCESSES = "multiprocessing"
"""Its sockets and folders have names that only processes see which this one starts: the lost rank's may be there still."""

Call = Callable[..., Any]
Draw = Callable[[int, object], bytes]
"""So many bytes by chance, for whoever asks."""


def from_system(size: int, _purpose: object) -> bytes:
    return os.urandom(size)  # ours is no question that is written down


def chosen(text: str) -> Draw:
    """Return what draws in a drill, in place of the system: the same bytes for the same text, so that two runs are equal."""
    asked: Counter[object] = Counter()

    def draw(size: int, purpose: object) -> bytes:
        asked[purpose] += 1
        return hashlib.shake_256(repr((text, purpose, asked[purpose])).encode()).digest(size)

    return draw


def _derived(key: bytes, purpose: str, size: int) -> bytes:
    return hashlib.blake2b(purpose.encode(), key=key, digest_size=size).digest()


def seed_python(key: bytes) -> None:
    random.seed(int.from_bytes(_derived(key, "python", 32), "little"))
    # A spare has drawn names already, and for the first one the place for temporary files was looked for.
    tempfile.__dict__.update(_name_sequence=None, tempdir=None)


def seed_numpy(key: bytes, generators: Any) -> None:
    """Seed numpy from the key. `generators`: the module numpy.random."""
    generators.seed(list(memoryview(_derived(key, "numpy", 32)).cast("I")))


def seed_torch(key: bytes, torch: Any) -> None:
    torch.default_generator.manual_seed(int.from_bytes(_derived(key, "torch", 8), "little") >> 1)


def divert_draws(diversions: Diversions, outside: Outside, draw: Draw) -> None:
    """Divert draws from the system, and seeds. Raises UnsupportedError where this Python is built otherwise."""
    diversions.divert(os.urandom, lambda original: _urandom(original, outside, draw))
    diversions.divert_method(random.Random.__mro__[1], "seed", lambda original: _python_seed(original, outside, draw))
    if (names := getattr(tempfile, "_RandomNameSequence", None)) is not None:
        diversions.divert_method(names, "__next__", lambda original: _temporary_name(original, outside))
    try:
        import _uuid  # type: ignore[import-not-found]  # C code of Python's own, where libuuid is
    except ImportError:
        return  # uuid1 is made of the time and of generators then
    if (generate := getattr(_uuid, "generate_time_safe", None)) is not None:
        diversions.divert(generate, lambda original: _time_id(original, outside))


def divert_torch(diversions: Diversions, outside: Outside, torch: ModuleType, draw: Draw) -> None:
    """Divert the seeds of torch. Raises UnsupportedError as `divert_draws` does."""
    generator = torch.Generator
    diversions.divert_method(generator, "seed", lambda original: _torch_draws_seed(original, outside, draw))
    diversions.divert_method(generator, "manual_seed", lambda original: _torch_seed(original, outside))


def _urandom(original: Call, outside: Outside, draw: Draw) -> Call:
    def urandom(size: int) -> Any:
        frame = asking(sys._getframe(1).f_back)
        if frame is None:
            return original(size)
        key = key_of(f"os.urandom({size})", frame)
        return outside.answer(key, lambda: draw(size, key), needed=is_own(frame))

    return urandom


def _temporary_name(original: Call, outside: Outside) -> Call:
    """Record names by the line that asks: their generator belongs to all callers, and the first one draws its seed."""

    def next_name(self: Any) -> Any:
        caller = sys._getframe(1)
        frame = asking(caller)
        if frame is None or caller.f_code.co_name == _LOOKS_FOR_A_FOLDER or _is_between_processes(caller, frame):
            return original(self)
        return outside.answer(key_of("a temporary name", frame), lambda: original(self))

    return next_name


def _is_between_processes(caller: FrameType, asking: FrameType) -> bool:
    """Return whether the name is one that multiprocessing asks for. `asking`: the frame outside of Python's own library."""
    frame: FrameType | None = caller
    while frame is not None and frame is not asking:
        if str(frame.f_globals.get("__name__", "")).startswith(_BETWEEN_PROCESSES):
            return True
        frame = frame.f_back
    return False


def _time_id(original: Call, outside: Outside) -> Call:
    def generate_time_safe() -> Any:
        frame = asking(sys._getframe(1).f_back)
        return original() if frame is None else outside.answer(key_of("uuid1", frame), original)

    return generate_time_safe


def _python_seed(original: Call, outside: Outside, draw: Draw) -> Call:
    """Give a seed to a caller that seeds with nothing, so that a joiner can be given the same."""

    def seed(self: Any, value: Any = None) -> Any:
        frame = asking(sys._getframe(1))
        of_names = sys._getframe(1).f_globals is tempfile.__dict__  # each name is kept by itself
        if frame is None or of_names or not (value is None or isinstance(value, int)):
            return original(self, value)
        key = key_of("a seed of random", frame)
        if value is not None:
            return original(self, outside.answer(key, lambda: value))
        drawn = outside.answer(key, lambda: int.from_bytes(draw(KEY_BYTES, key), "little"), needed=is_own(frame))
        return original(self, drawn)

    return seed


def _torch_seed(original: Call, outside: Outside) -> Call:
    def manual_seed(self: Any, seed: Any) -> Any:
        frame = asking(sys._getframe(1), *_TORCH)
        if frame is None or not isinstance(seed, int):
            return original(self, seed)
        return original(self, outside.answer(key_of("torch's manual_seed", frame), lambda: seed))

    return manual_seed


def _torch_draws_seed(original: Call, outside: Outside, draw: Draw) -> Call:
    def seed(self: Any) -> Any:
        frame = asking(sys._getframe(1), *_TORCH)
        if frame is None:
            return original(self)
        key = key_of("torch's seed", frame)
        given: int = outside.answer(key, lambda: int.from_bytes(draw(8, key), "little") >> 1, needed=is_own(frame))
        self.manual_seed(given)
        return given

    return seed
