"""Imports: modules of the user's are rewritten, `-m` finds its script, and the runtime learns that torch is there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

from torchrelay.shim.adapters.frameworks import GENERATORS
from torchrelay.shim.bootstrap import script_end
from torchrelay.shim.bootstrap.runtime_interface import RuntimeInterface
from torchrelay.shim.instrument.cached_rewrite import Rewritten, rewrite
from torchrelay.shim.instrument.code_cache import CodeCache, default_folder
from torchrelay.shim.instrument.packages import PackageOrigin, Packages
from torchrelay.shim.instrument.rewrite import instrument
from torchrelay.shim.script import sites
from torchrelay.shim.script.hidden_frames import hide_this_frame

_LAUNCHERS = {"torch", "accelerate", "deepspeed", "torchrelay"}
"""Packages that are started with -m to start the script as another process."""


def _make_plain(loader: SourceFileLoader) -> None:
    """Turn one of our loaders into Python's own: it stays in sight as the module's `__loader__`."""
    loader.__dict__ = {"name": loader.name, "path": loader.path}
    loader.__class__ = SourceFileLoader


class InstrumentedLoader(SourceFileLoader):
    """Python's loader, but its module gets other code. The `.pyc` cache holds the plain code, as without us."""

    def __init__(self, plain: SourceFileLoader, made: Rewritten, finder: ScriptFinder) -> None:
        super().__init__(plain.name, plain.path)
        self._made = made
        self._finder = finder

    def get_code(self, fullname: str) -> CodeType:
        try:
            plain = super().get_code(fullname)  # warns and writes the cache as plain Python does
        except BaseException as e:
            hide_this_frame(e)
            raise
        made = self._made
        finder = self._finder
        path = str(self.path)
        by_runpy = sys._getframe(1).f_globals.get("__name__") == "runpy"
        _make_plain(self)
        if by_runpy and finder.starts_script(fullname):
            return finder.script_code(path, self.get_data(path))
        assert plain is not None  # a source file was read to make `made`
        finder.publish_sites(path, made.sites, made.next_calls, made.code, plain)
        return made.code


class AnnouncingLoader(SourceFileLoader):
    """Python's loader, but it tells when the module has been imported."""

    def __init__(self, plain: SourceFileLoader, imported: Callable[[ModuleType], None]) -> None:
        super().__init__(plain.name, plain.path)
        self._imported = imported

    def exec_module(self, module: ModuleType) -> None:
        try:
            super().exec_module(module)
        except BaseException as e:
            hide_this_frame(e)
            raise
        imported = self._imported
        _make_plain(self)
        imported(module)


class ScriptFinder:
    """First on `sys.meta_path`. Asks the finders behind it, and exchanges the loader of what they find."""

    def __init__(
        self,
        runtime: RuntimeInterface,
        publish: Callable[[], None],
        imported: Mapping[str, Callable[[ModuleType], None]],
    ) -> None:
        """Begin. `imported`: name of a module -> what is called when it has been imported."""
        self._runtime = runtime
        self._publish = publish
        self._imported = imported
        self._script_names: tuple[str, ...] = ()
        self._script_package = ""
        self._started = False
        self._cache = CodeCache(default_folder())
        self._packages = Packages(self._cache)

    def run_module(self, name: str) -> None:
        """Note that the interpreter was started with `-m name`, or with a folder or an archive (then `__main__`)."""
        self._script_names = (name, f"{name}.__main__")
        # An installed package that is started as the script is the user's, wherever it lies.
        self._script_package = name.partition(".")[0]
        if self._script_package in _LAUNCHERS:
            self._runtime.disable(
                f"{name} is a launcher, not a training script: give the script itself to `torchrelay run`, and what the launcher "
                "would have set as variables (ACCELERATE_MIXED_PRECISION=bf16)"
            )
            self._script_names = ()
            self._script_package = ""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        try:
            spec = self._found_by_others(name, path, target)
        except BaseException as e:
            hide_this_frame(e)
            raise
        if spec is None or name.partition(".")[0] == "torchrelay":
            return spec
        if type(spec.loader) is not SourceFileLoader:
            if name in self._script_names and spec.loader is not None and spec.submodule_search_locations is None:
                self._runtime.disable(f"{name} is not a Python source file")
            return spec
        if name in self._imported:
            spec.loader = AnnouncingLoader(spec.loader, self._imported[name])
        else:
            origin = self._origin(name, spec.loader.path)
            if origin is not PackageOrigin.LEFT_ALONE or name in self._script_names:
                self._exchange(spec, spec.loader, origin)
        return spec

    def _found_by_others(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            if finder is self:
                continue
            find_spec: Any = getattr(finder, "find_spec", None)
            if find_spec is None:
                return None  # one of the old kind: the import system knows how to ask it
            spec = find_spec(name, path, target)
            if spec is not None:
                return spec  # type: ignore[no-any-return]  # finders of others have no types
        return None

    def _origin(self, name: str, file: str) -> PackageOrigin:
        if self._script_package and name.partition(".")[0] == self._script_package:
            return PackageOrigin.USERS
        return self._packages.origin(name, file)

    def adopt(self, spec: ModuleSpec) -> bool:
        """Rewrite a module that is loaded by its file, past the finders. Return whether it is one of the user's."""
        if type(spec.loader) is not SourceFileLoader or spec.name.partition(".")[0] == "torchrelay":
            return False
        origin = self._origin(spec.name, spec.loader.path)
        if origin is not PackageOrigin.LEFT_ALONE:
            self._exchange(spec, spec.loader, origin)
        return origin is PackageOrigin.USERS

    def _exchange(self, spec: ModuleSpec, loader: SourceFileLoader, origin: PackageOrigin) -> None:
        package = origin is PackageOrigin.TRAINS
        if not package:
            # Without loops, and if it cannot be rewritten, it has state all the same.
            sites.INSTRUMENTED_FILES.add(loader.path)
        try:
            source = loader.get_data(loader.path)
            generators = GENERATORS.get(spec.name, frozenset())
            if origin is PackageOrigin.USERS or spec.name in self._script_names:
                sites.note_text(loader.path, source)
            loops = origin is not PackageOrigin.LEFT_ALONE
            made = rewrite(self._cache, source, loader.path, loops=loops, package=package, generators=generators)
        except (OSError, SyntaxError, ValueError):
            return  # the module's own; Python's loader comes upon it too, and tells the user
        except Exception as e:  # noqa: BLE001 - whatever is wrong with us, the script runs
            sites.LEFT_ALONE[loader.path] = f"{type(e).__name__}: {e}"
            return
        if package:
            sites.PACKAGES.add(loader.path)
            sites.INSTRUMENTED_FILES.add(loader.path)
        if made.sites or made.next_calls or spec.name in self._script_names:
            spec.loader = InstrumentedLoader(loader, made, self)

    def starts_script(self, name: str) -> bool:
        """Return whether `name` is the module of `-m`, asked for the first time."""
        if self._started or name not in self._script_names:
            return False
        self._started = True
        return True

    def script_code(self, path: str, source: bytes) -> CodeType:
        """Return the code of the module of `-m`, which tells when it ends."""
        name = self._script_names[0]
        generators = GENERATORS.get(name, frozenset())
        loops = self._origin(name, path) is PackageOrigin.USERS
        made = instrument(source, path, loops=loops, main=True, generators=generators)
        self.publish_sites(path, made.sites, made.next_calls, made.code, made.plain)
        script_end.expect(self._runtime, from_file=False)
        return made.code

    def publish_sites(
        self, path: str, found: tuple[sites.Site, ...], next_calls: int, code: CodeType, plain: CodeType
    ) -> None:
        if found or next_calls:
            sites.register(path, found, code, plain)
            self._publish()
