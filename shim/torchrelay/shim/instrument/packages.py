"""What a module is: the user's own, part of an installed package that trains, or something that is left alone.

A package is installed if a distribution's metadata beside it says so; where it lies does not matter. `pip --target` makes such
packages in any folder. An editable package lies where its author works on it, without metadata beside it: it is the user's own.

An installed package trains if any of its files steps an optimizer. The loop that goes round is often in another file than the
step, so all files count whose text could hold such a loop. What was found is kept on disk until the folder changes.
"""

from __future__ import annotations

import contextlib
import enum
import marshal
import os
import re
from collections.abc import Iterator

from torchrelay.shim.adapters.frameworks import NEVER_REWRITTEN
from torchrelay.shim.instrument.code_cache import CodeCache

_PACKAGE_FOLDERS = {"site-packages", "dist-packages"}
_STEPS = re.compile(rb"\b\w*(?:opt|scaler)\w*(?:\[[^\]\n]*\])?\.step\(", re.IGNORECASE)
_NAMED_LIKE_TRAINING = re.compile(rb"def \w*(?:train|fit|step|epoch|learn|optimi|loop|run|batch)", re.IGNORECASE)
_LARGEST_BYTES = 4 << 20
"""Nobody writes a training loop into a larger file."""


class PackageOrigin(enum.Enum):
    USERS = "the user's own"
    TRAINS = "of an installed package, and may hold a training loop"
    LEFT_ALONE = "of the standard library, or of a package that does not train"


class Packages:
    def __init__(self, cache: CodeCache) -> None:
        self._cache = cache
        self._library = os.path.dirname(os.path.realpath(os.__file__)) + os.sep
        self._installed: dict[tuple[str, str], bool] = {}
        self._may_train: dict[tuple[str, str], frozenset[str]] = {}

    def origin(self, name: str, file: str) -> PackageOrigin:
        """Return the origin of module `name` in `file`. Never raises OSError: what cannot be read is left alone."""
        top = name.partition(".")[0]
        home = _home(name, file)
        if self._is_installed(home, top):
            if top in NEVER_REWRITTEN:
                return PackageOrigin.LEFT_ALONE
            return PackageOrigin.TRAINS if file in self._files_that_may_train(home, top) else PackageOrigin.LEFT_ALONE
        return PackageOrigin.LEFT_ALONE if os.path.realpath(file).startswith(self._library) else PackageOrigin.USERS

    def _is_installed(self, home: str, top: str) -> bool:
        if not _PACKAGE_FOLDERS.isdisjoint(home.split(os.sep)):
            return True
        known = self._installed.get((home, top))
        if known is None:
            known = self._installed[home, top] = _has_metadata(home, top)
        return known

    def _files_that_may_train(self, home: str, top: str) -> frozenset[str]:
        """Return the files of one package that may train; none if it steps no optimizer."""
        known = self._may_train.get((home, top))
        if known is None:
            known = self._may_train[home, top] = self._look_up(home, top)
        return known

    def _look_up(self, home: str, top: str) -> frozenset[str]:
        try:
            # Installing anything in that folder, and another version of this package, changes these times.
            places = [os.stat(path).st_mtime_ns for path in (home, os.path.join(home, top)) if os.path.exists(path)]
            key = self._cache.key(f"{home}\0{top}\0{places}".encode())
            kept = self._cache.load(key)
            if kept is not None:
                return frozenset(marshal.loads(kept))
            found = [*_files_that_may_train(home, top)]
            self._cache.store(key, marshal.dumps(found))
        except (OSError, EOFError, ValueError, TypeError):
            return frozenset()
        return frozenset(found)


def _home(name: str, file: str) -> str:
    """Return the folder that the module lies in, or the package that it is part of. A package may have a module of its own name."""
    top = name.partition(".")[0]
    folder = os.path.dirname(file)
    if name == top and os.path.basename(file) == f"{top}.py":
        return folder
    while os.path.basename(folder) not in (top, ""):
        folder = os.path.dirname(folder)
    return os.path.dirname(folder) if os.path.basename(folder) else os.path.dirname(file)


def _has_metadata(home: str, top: str) -> bool:
    """Return whether a distribution that is installed in this folder has `top` among its files."""
    wanted = [f"{top}/".encode(), f"{top}.py,".encode()]
    with contextlib.suppress(OSError):
        for name in os.listdir(home):
            if name.endswith(".dist-info"):
                with contextlib.suppress(OSError):
                    record = _read(os.path.join(home, name, "RECORD"))
                    if any(record.startswith(start) or b"\n" + start in record for start in wanted):
                        return True
    return False


def _files_that_may_train(home: str, top: str) -> Iterator[str]:
    files = [*_python_files(home, top)]
    if not any(steps_an_optimizer(_read(file)) for file in files):
        return
    for file in files:
        if may_hold_training_loop(_read(file)):
            yield file


def _python_files(home: str, top: str) -> Iterator[str]:
    single = os.path.join(home, f"{top}.py")
    if os.path.exists(single):
        yield single
    # Names that speak of training come first, and the search for a step ends soon.
    found = [
        os.path.join(folder, name)
        for folder, _, names in os.walk(os.path.join(home, top))
        for name in names
        if name.endswith(".py")
    ]
    yield from sorted(found, key=lambda file: ("train" not in file and "optim" not in file, file))


def _read(file: str) -> bytes:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)  # `open` can be the one that a joiner's set-up is given
    try:
        size = os.fstat(descriptor).st_size
        return os.read(descriptor, size) if size <= _LARGEST_BYTES else b""
    finally:
        os.close(descriptor)


def steps_an_optimizer(source: bytes) -> bool:
    return b".step(" in source and _STEPS.search(source) is not None


def may_hold_training_loop(source: bytes) -> bool:
    """Return whether its text calls what trains, or has a function that is named like training."""
    return b"step(" in source or b"backward(" in source or _NAMED_LIKE_TRAINING.search(source) is not None
