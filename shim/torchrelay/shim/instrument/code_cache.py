"""What rewriting has made, kept on disk as `.pyc` files are, so that the next process need not do it again.

In a folder of the user's own, never beside the sources. A file is there whole or not at all. Several processes may write the
same one. What cannot be read or written is made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from pathlib import Path

from torchrelay.protocol.machine.cache_folder import code_folder

_MOST_FILES = 4096
_MAKE_OR_READ = ("instrument", "script", "bootstrap")
"""Folders of the shim: sites are of `script`, and rewritten code calls `bootstrap`."""
_SUFFIX = ".bin"


def default_folder() -> Path | None:
    """Return the folder for rewritten code; None where there is no folder that belongs to this user alone."""
    return code_folder(os.environ)


class CodeCache:
    """Rewritten code on disk. `folder`: None keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._counted = False
        self._salt = b""

    def key(self, content: bytes) -> str:
        """Return the key for what is made of `content` by this version of Python and of the shim."""
        self._salt = self._salt or _own_version()
        return hashlib.blake2b(content, key=self._salt, digest_size=20).hexdigest()

    def load(self, key: str) -> bytes | None:
        if self._folder is None or not self._is_ours(self._folder):
            return None
        try:
            descriptor = os.open(self._folder / (key + _SUFFIX), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        with contextlib.closing(os.fdopen(descriptor, "rb")) as file:
            try:
                data = file.read()
            except OSError:
                return None
        digest = data[:20]
        content = data[20:]
        return content if hashlib.blake2b(content, digest_size=20).digest() == digest else None

    def store(self, key: str, content: bytes) -> None:
        if self._folder is None or sys.dont_write_bytecode:
            return
        partial = self._folder / f"{key}.{os.getpid()}"
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            if not self._is_ours(self._folder):
                return
            self._make_room(self._folder)
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with contextlib.closing(os.fdopen(descriptor, "wb")) as file:
                file.write(hashlib.blake2b(content, digest_size=20).digest() + content)
            os.replace(partial, self._folder / (key + _SUFFIX))
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(partial)

    @staticmethod
    def _is_ours(folder: Path) -> bool:
        """Return whether only this user can write to the folder: code that comes from there is executed."""
        try:
            status = os.stat(folder)
        except OSError:
            return False
        return status.st_uid == os.geteuid() and not status.st_mode & 0o022

    def _make_room(self, folder: Path) -> None:
        """Remove the older half once there are too many. Look once in a process."""
        if self._counted:
            return
        self._counted = True
        kept = sorted((entry.stat().st_mtime_ns, entry.path) for entry in os.scandir(folder))
        if len(kept) > _MOST_FILES:
            for _, path in kept[: len(kept) // 2]:
                with contextlib.suppress(OSError):
                    os.unlink(path)


def _own_version() -> bytes:
    """Return a key that changes with Python and with any file that makes, or reads, what is kept."""
    shim = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    files = sorted(
        (part, entry.name, entry.stat().st_size, entry.stat().st_mtime_ns)
        for part in _MAKE_OR_READ
        for entry in os.scandir(os.path.join(shim, part))
        if entry.name.endswith(".py")
    )
    return hashlib.blake2b(f"{sys.version}{sys.flags.optimize}{files}".encode(), digest_size=32).digest()
