"""Modules that a script loads by their file, as many load their configuration: no finder is asked for these.

Their code is rewritten, and their variables are state, as those of any module of the user's.
"""

from __future__ import annotations

import functools
import importlib.util
from importlib.machinery import ModuleSpec
from types import ModuleType

from torchrelay.shim.bootstrap.import_finder import ScriptFinder
from torchrelay.shim.script import sites
from torchrelay.shim.script.hidden_frames import hide_this_frame

_MOST = 256
"""A script that loads a file anew in each step would keep them all alive."""


def follow(finder: ScriptFinder) -> None:
    """Follow `importlib.util.module_from_spec`, which Python's own imports do not use."""
    original = importlib.util.module_from_spec

    @functools.wraps(original)
    def module_from_spec(spec: ModuleSpec) -> ModuleType:
        try:
            is_users = finder.adopt(spec)
            module = original(spec)
        except BaseException as e:
            hide_this_frame(e)
            raise
        if is_users and len(sites.LOADED_BY_FILE) < _MOST:
            sites.LOADED_BY_FILE.append(module)
        return module

    importlib.util.module_from_spec = module_from_spec
