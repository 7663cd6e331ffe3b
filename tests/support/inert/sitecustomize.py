"""Puts the inert runtime in the place of the real one, then goes on to torchrelay's own `sitecustomize`."""

import importlib.abc
import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
sys.path.remove(_here)
sys.path_importer_cache.pop(_here, None)


class _InsteadOfTheRuntime(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "torchrelay.shim.runtime.runtime":
            return None
        sys.meta_path.remove(self)
        return importlib.util.spec_from_file_location(name, os.path.join(os.path.dirname(_here), "inert_runtime.py"))


sys.meta_path.insert(0, _InsteadOfTheRuntime())
del sys.modules["sitecustomize"]
import sitecustomize  # noqa: E402, F401 - the next one on the path
