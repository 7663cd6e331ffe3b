"""For tests with many processes: torch without its compiler, until something asks for more than eager training does.

Half of what `import torch` takes, and most of what the first optimizer or DistributedDataParallel brings about, serves a
compiler, only to be told that nothing is compiled. Eager training computes the same without it. Whatever is asked for that is
not answered here brings about the real module, as does the import of any of its parts.
"""

import importlib.machinery
import importlib.util
import sys
import types
from typing import ClassVar

_ANSWERS = {
    "torch._dynamo": {
        "disable": lambda fn=None, recursive=True, **_: fn,
        "graph_break": lambda *_: None,
        "utils": types.SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"),
        "trace_rules": types.SimpleNamespace(clear_lru_cache=lambda: None),
    },
    "torch.export": {},
}
"""What is answered without the real package, by the package's name."""
_SHAPES = "torch._meta_registrations"
"""Shapes of results without computing them. It is imported for what it registers, and nobody asks it for anything."""
_ASKS_FOR_SHAPES = "torch.distributed.tensor"


class _Lean(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_real(self.__name__), name)


class _There:
    """A part that the real one has brought with it."""

    @staticmethod
    def create_module(spec):
        return sys.modules[spec.name]

    @staticmethod
    def exec_module(module):
        pass


class _Finder:
    """Finds each stand-in, once; for a part of the real one it makes way."""

    away: ClassVar = set()

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in cls.away:
            return None
        if name == _SHAPES or name in _ANSWERS:
            return importlib.machinery.ModuleSpec(name, cls, is_package=name != _SHAPES)
        if name == _ASKS_FOR_SHAPES:
            _real(_SHAPES)
        package = next((lean for lean in _ANSWERS if name.startswith(lean + ".")), None)
        if package is None or package in cls.away:
            return None
        real = _real(package)
        if name in sys.modules:
            return importlib.machinery.ModuleSpec(name, _There)
        return importlib.machinery.PathFinder.find_spec(name, real.__path__)

    @staticmethod
    def create_module(spec):
        return _Lean(spec.name)

    @staticmethod
    def exec_module(module):
        module.__dict__.update(_ANSWERS.get(module.__name__, {}))
        if module.__name__ == _SHAPES:
            # The real one does so too, by the way; until then there is no torch.Generator.
            opaque = importlib.import_module("torch._opaque_base")
            sys.modules["torch"]._C._set_generator_metaclass(opaque.OpaqueBaseMeta)


def _real(name):
    _Finder.away.add(name)
    lean = sys.modules.get(name)
    if isinstance(lean, _Lean):
        del sys.modules[name]
        for answered in _ANSWERS.get(name, ()):
            delattr(lean, answered)
        vars(sys.modules["torch"]).pop(name.rpartition(".")[2], None)
    if name != _SHAPES:
        _real(_SHAPES)
    return importlib.import_module(name)


sys.meta_path.insert(0, _Finder)
