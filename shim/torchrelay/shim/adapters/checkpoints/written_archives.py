"""Tell which files `torch.save` writes: it opens them in C++.

Leans on `torch.serialization._open_zipfile_writer_file`, which is made with the file's name. Seen on torch 2.11 and 2.13; where it
is missing, nothing is told.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def watch(tell: Callable[[Any], None]) -> None:
    """Call `tell(path)` from now on before `torch.save` opens a path."""
    writer: Any = getattr(torch.serialization, "_open_zipfile_writer_file", None)
    if writer is None:
        return
    original = writer.__init__

    @functools.wraps(original)
    def begin(self: Any, name: Any, *args: Any, **options: Any) -> None:
        tell(name)
        original(self, name, *args, **options)

    writer.__init__ = begin
