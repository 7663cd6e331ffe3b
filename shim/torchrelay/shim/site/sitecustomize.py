"""Loaded by Python's `site` when the interpreter of a training process starts: lets torchrelay in.

The folder of this file is first on PYTHONPATH. Nothing of that is left when the script starts: the folder is off
`sys.path`, PYTHONPATH is what the user's was, and a `sitecustomize` that this one shadows has run.
"""

import os
import sys
from collections.abc import Mapping

# The names are those of torchrelay.protocol.names, which cannot be imported yet: they have to go whatever happens.
OURS = (
    "TORCHRELAY_SOCKET",
    "TORCHRELAY_WORKER",
    "TORCHRELAY_TOKEN",
    "TORCHRELAY_TOKEN_FILE",
    "TORCHRELAY_JOURNAL",
    "TORCHRELAY_SPARE",
    "TORCHRELAY_ADDRESS",
    "TORCHRELAY_INJECT",
    "TORCHRELAY_ROOTS",
    "TORCHRELAY_PYTHONPATH_WAS",
    "TORCHRELAY_BUDDY_EVERY",
    "TORCHRELAY_BUDDY_SYNC",
    "TORCHRELAY_KEPT",
    "TORCHRELAY_WATCH",
    "TORCHRELAY_COST_LIMIT",
    "TORCHRELAY_TRANSFER_ENCRYPTION",
    "TORCHRELAY_HOLD_AT",
    "TORCHRELAY_MADE_FILES",
    "TORCHRELAY_CUT_LOADERS",
    "TORCHRELAY_ASK",
    "TORCHRELAY_GRACE_S",
    "TORCHRELAY_ENTROPY",
    "TORCHRELAY_HASH_SEED_WAS",
    "TORCHRELAY_LOG",
    "TORCHRELAY_LOG_NAMESPACE",
    "TORCHRELAY_LOG_JOB",
)


def say(text: str) -> None:
    """Without Python's buffer: a pipe that nobody reads any more would end the script with what is left in it."""
    try:  # noqa: SIM105 - what is imported here is there before the script imports anything
        os.write(2, f"{text}\n".encode(errors="backslashreplace"))
    except OSError:
        pass  # nobody is there to read it


def let_torchrelay_in(environ: Mapping[str, str], whole: Mapping[str, str]) -> None:
    try:
        from importlib.machinery import ModuleSpec
        from importlib.util import module_from_spec

        # This makes a namespace package over the folders that hold shim and protocol, without a place on sys.path.
        spec = ModuleSpec("torchrelay", None, is_package=True)
        roots = environ["TORCHRELAY_ROOTS"].split(os.pathsep)
        spec.submodule_search_locations = [os.path.join(root, "torchrelay") for root in roots]
        sys.modules["torchrelay"] = module_from_spec(spec)

        from torchrelay.shim.interpreter_entry import start

        start(environ, site=os.path.dirname(os.path.abspath(__file__)), whole=whole)
    except Exception as e:  # noqa: BLE001 - the script must run, whatever is wrong with us
        reason = " ".join(str(e).split())
        if environ.get("TORCHRELAY_SPARE") == "1" and environ.get("TORCHRELAY_ASK") == "1":
            # A copy of a worker's pod: its script would train as a rank that lives elsewhere.
            say(f"torchrelay: error: this spare is of no use: {type(e).__name__}: {reason}")
            os._exit(69)  # EX_UNAVAILABLE
        say(f"torchrelay: warning: not protecting this process: {type(e).__name__}: {reason}")


def take_environment() -> dict[str, str]:
    """Our variables, out of the environment: what this process starts is none of our business."""
    environ = {name: os.environ.pop(name) for name in OURS if name in os.environ}
    if "TORCHRELAY_SOCKET" in environ:
        if "TORCHRELAY_PYTHONPATH_WAS" in environ:
            os.environ["PYTHONPATH"] = environ["TORCHRELAY_PYTHONPATH_WAS"]
        else:
            os.environ.pop("PYTHONPATH", None)
    if "TORCHRELAY_HASH_SEED_WAS" in environ:
        os.environ.pop(
            "PYTHONHASHSEED", None
        )  # the interpreter has read it; what the script starts is none of our business
        if environ["TORCHRELAY_HASH_SEED_WAS"]:
            os.environ["PYTHONHASHSEED"] = environ["TORCHRELAY_HASH_SEED_WAS"]
    return environ


def leave_path() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != here]
    sys.path_importer_cache.pop(here, None)
    del sys.modules["sitecustomize"]


_whole = dict(os.environ)
_environ = take_environment()
leave_path()
try:
    # This imports the one that this file shadows. Where there is none, `site` takes the error for just that.
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
finally:
    if "TORCHRELAY_SOCKET" in _environ:
        let_torchrelay_in(_environ, _whole)
