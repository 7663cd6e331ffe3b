"""A launcher in a pod, such as torchrun: it runs as it is, and the processes that it starts are the ones that are protected.

Before it meets the others it asks: in a job that trains it would only disturb them. Then, and in a spare's pod, it meets
nobody, and what it starts is parked until there is a rank to take over.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

from torchrelay.protocol import names
from torchrelay.shim.agent_link.ask import ask_for_launcher
from torchrelay.shim.agent_link.config import ShimConfig
from torchrelay.shim.bootstrap.import_finder import AnnouncingLoader

_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_SCRIPTS = ("torchrun", "accelerate", "accelerate-launch")
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
_PYTHONPATH = "PYTHONPATH"


def is_launcher(command: Sequence[str]) -> bool:
    """Return whether `command` is a launcher's: the command of the interpreter, itself first (`sys.orig_argv`)."""
    rest = iter(command[1:])
    for word in rest:
        if word == "-m":
            return next(rest, "") in _MODULES
        if word.startswith("-m"):
            return word[2:] in _MODULES
        if word in _WITH_VALUE:
            next(rest, None)
        elif not word.startswith("-"):
            return os.path.basename(word) in _SCRIPTS
        elif word == "-c":
            return False
    return False


def start(config: ShimConfig, environ: Mapping[str, str], site: str) -> None:
    """Put hooks into a launcher. `environ`: what was taken out of the environment. `site`: our folder on PYTHONPATH.

    Raises OSError or TorchrelayError if no agent says what the launcher is to do; it then runs as it is.
    """
    from torchrelay.shim.adapters import elastic

    spare = config.spare or ask_for_launcher(config).spare
    run_folder = os.path.dirname(config.socket)
    mark = os.path.join(run_folder, names.PROTECTED_FILE)
    hooks = elastic.ElasticHooks(children_environment(environ, os.environ, site, spare), mark, spare, config.log)
    sys.meta_path.insert(0, LauncherFinder(hooks.imported))


def children_environment(taken: Mapping[str, str], own: Mapping[str, str], site: str, spare: bool) -> dict[str, str]:
    """Return variables that make a training process one of ours, and no other process that the launcher starts."""
    env = {name: value for name, value in taken.items() if name not in (names.ENV_PYTHONPATH_WAS, names.ENV_SPARE)}
    env[_PYTHONPATH] = site
    if theirs := own.get(_PYTHONPATH):
        env[_PYTHONPATH] = f"{site}{os.pathsep}{theirs}"
        env[names.ENV_PYTHONPATH_WAS] = theirs
    if names.ENV_HASH_SEED_WAS in taken:
        env[names.HASH_SEED_VARIABLE] = names.HASH_SEED
    if spare:
        env[names.ENV_SPARE] = "1"
    return env


class LauncherFinder:
    """First on `sys.meta_path`. Tells of modules that have been imported."""

    def __init__(self, imported: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self._imported = imported

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self._imported:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = AnnouncingLoader(spec.loader, self._imported[name])
        return spec
