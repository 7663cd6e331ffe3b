"""The way into a training process: called by our `sitecustomize` when the interpreter starts."""

from __future__ import annotations

import builtins
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType

from torchrelay.shim.adapters import dynamo
from torchrelay.shim.adapters.frameworks import ACCELERATE
from torchrelay.shim.agent_link.config import ShimConfig
from torchrelay.shim.agent_link.start_over import InterpreterStart
from torchrelay.shim.bootstrap import launcher, loaded_by_file, run_file, torch_parts
from torchrelay.shim.bootstrap.import_finder import ScriptFinder
from torchrelay.shim.bootstrap.runtime_interface import RuntimeInterface
from torchrelay.shim.instrument.rewrite import HOOKS
from torchrelay.shim.set_up.recording import NUMPY_RANDOM

_FULLY_SHARD = "torch.distributed.fsdp._fully_shard._fsdp_state"


def _hook_fully_shard(runtime: RuntimeInterface, module: ModuleType) -> None:
    from torchrelay.shim.adapters.parallel import fsdp2  # it imports torch

    fsdp2.hook(module, runtime.disable)


def start(
    environ: Mapping[str, str],
    connect: Callable[[ShimConfig], RuntimeInterface] | None = None,
    site: str = "",
    whole: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Connect this process to its agent and get ready for the script. A spare waits in here until it has a rank.

    `site`: the folder on PYTHONPATH that has let us in. `whole`: the environment as it was.

    Raises TorchrelayError or OSError if the process cannot be protected; nothing is left behind then.
    """
    config = ShimConfig.from_environ(environ, os.environ)
    if config.asks and launcher.is_launcher(sys.orig_argv):
        launcher.start(config, environ, site)
        return
    if config.asks:
        config = dataclasses.replace(config, started=InterpreterStart.of_this(whole))
    if connect is None:
        from torchrelay.shim.runtime.runtime import Runtime as RealRuntime

        connect = RealRuntime.connect
    runtime = connect(config)
    if runtime.is_spare:
        runtime.park()
    install(runtime)


def install(runtime: RuntimeInterface) -> None:
    """Put hooks into the start of the script and the imports."""
    publish = functools.partial(setattr, builtins, HOOKS, runtime.hooks)
    runtime.begin_set_up()
    imported = {
        "torch": _guarded(runtime, lambda _: runtime.torch_imported()),
        NUMPY_RANDOM: _guarded(runtime, runtime.numpy_imported),
        ACCELERATE: _guarded(runtime, runtime.accelerate_imported),
        dynamo.MODULE: _guarded(runtime, dynamo.show_plain_code),
        _FULLY_SHARD: _guarded(runtime, functools.partial(_hook_fully_shard, runtime)),
        **dict.fromkeys(torch_parts.NAMES, _guarded(runtime, runtime.part_imported)),
    }
    finder = ScriptFinder(runtime, publish, imported)
    run_file.watch(runtime, publish, finder.run_module)
    sys.meta_path.insert(0, finder)
    loaded_by_file.follow(finder)
    for name, tell in imported.items():
        if name in sys.modules:
            tell(sys.modules[name])


def _guarded(runtime: RuntimeInterface, tell: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    process = os.getpid()

    def imported(module: ModuleType) -> None:
        if os.getpid() != process and module.__name__ == "torch":
            return  # a child that was forked
        try:
            tell(module)
        except Exception as e:  # noqa: BLE001 - whatever is wrong with us, the script goes on
            runtime.disable(f"{module.__name__} could not be prepared: {type(e).__name__}: {e}")

    return imported
