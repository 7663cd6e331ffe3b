"""For tests with many processes: torch without its compiler, until something asks for more than an eager optimizer does.

`import torch._dynamo` takes as long as all else of a small script's start, and every optimizer and DistributedDataParallel
brings it about, only to be told that nothing is compiled. Eager training computes the same without it. Whatever is asked
for that is not answered here brings about the real one, as does the import of any of its parts.
"""

import importlib.machinery
import importlib.util
import sys
import types

NAME = "torch._dynamo"
_ANSWERS = {
    "disable": lambda fn=None, recursive=True, **_: fn,
    "graph_break": lambda *_: None,
    "utils": types.SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"),
    "trace_rules": types.SimpleNamespace(clear_lru_cache=lambda: None),
}


class _Lean(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_real(), name)


class _There:
    """A part that the real one has brought with it."""

    @staticmethod
    def create_module(spec):
        return sys.modules[spec.name]

    @staticmethod
    def exec_module(module):
        pass


class _Finder:
    """Finds the stand-in, once; for a part of the real one it makes way."""

    is_away = False

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if cls.is_away:
            return None
        if name == NAME:
            return importlib.machinery.ModuleSpec(NAME, cls, is_package=True)
        if not name.startswith(NAME + "."):
            return None
        real = _real()
        if name in sys.modules:
            return importlib.machinery.ModuleSpec(name, _There)
        return importlib.machinery.PathFinder.find_spec(name, real.__path__)

    @staticmethod
    def create_module(spec):
        return _Lean(NAME)

    @staticmethod
    def exec_module(module):
        module.__dict__.update(_ANSWERS)


def _real():
    _Finder.is_away = True
    lean = sys.modules.get(NAME)
    if isinstance(lean, _Lean):
        del sys.modules[NAME]
        for name in _ANSWERS:
            delattr(lean, name)
        vars(sys.modules["torch"]).pop("_dynamo", None)
    return importlib.import_module(NAME)


sys.meta_path.insert(0, _Finder)
