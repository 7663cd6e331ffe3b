"""The way into a training process: called by our `sitecustomize` when the interpreter starts."""

from __future__ import annotations

import builtins
import functools
import os
import sys
from collections.abc import Callable, Mapping

from torchrelay.shim import run_file
from torchrelay.shim.config import ShimConfig
from torchrelay.shim.finder import ScriptFinder
from torchrelay.shim.instrument import HOOKS
from torchrelay.shim.interface import Runtime


def start(environ: Mapping[str, str], connect: Callable[[ShimConfig], Runtime] | None = None) -> None:
    """Connects this process to its agent and gets ready for the script. A spare waits in here until it has a rank.

    Raises TorchrelayError or OSError if the process cannot be protected; nothing is left behind then.
    """
    config = ShimConfig.from_environ(environ)
    if connect is None:
        from torchrelay.shim.runtime import Runtime as RealRuntime

        connect = RealRuntime.connect
    runtime = connect(config)
    if config.spare:
        runtime.park()
    install(runtime)


def install(runtime: Runtime) -> None:
    """Hooks the start of the script and the imports."""
    publish = functools.partial(setattr, builtins, HOOKS, runtime.hooks)
    torch_imported = functools.partial(_torch_imported, runtime, os.getpid())
    finder = ScriptFinder(runtime, publish, torch_imported)
    run_file.watch(runtime, publish, finder.run_module)
    sys.meta_path.insert(0, finder)
    if "torch" in sys.modules:
        torch_imported()


def _torch_imported(runtime: Runtime, process: int) -> None:
    if os.getpid() != process:
        return  # a child that was forked
    try:
        runtime.torch_imported()
    except Exception as e:  # noqa: BLE001 - whatever is wrong with us, the script goes on
        runtime.disable(f"torch could not be prepared: {type(e).__name__}: {e}")
