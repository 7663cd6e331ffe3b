"""`python FILE`: the instrumented script runs in the place of the original, with nothing of ours below it on the stack.

The interpreter raises the audit event `cpython.run_file` before it opens the file. Audit hooks are called in turn, so
the hook that sees the event adds another one, which is called next, straight from C, and runs the script. That second
hook is no Python function, which would be a frame below the script's (seen by `inspect.stack()`, `warnings`, the depth
at which recursion ends); it is `partial(range, entry)`: `range` asks `entry` for `__index__`, and that is the script's
module as a function. Its exception, SystemExit at the end included, leaves the audit event as an error, and the
interpreter handles that as it handles an exception of the script.
"""

from __future__ import annotations

import functools
import importlib.util
import operator
import os
import stat
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from types import FunctionType
from typing import Any

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.bootstrap import script_end
from torchrelay.shim.bootstrap.runtime_interface import RuntimeInterface
from torchrelay.shim.instrument.rewrite import instrument
from torchrelay.shim.script import sites


def _silence(hook: Any) -> None:
    """Make `hook`, a partial, take any event and do nothing, in about 50 ns: audit hooks cannot be removed."""
    hook.__setstate__((operator.is_, (), {}, {}))


class _Entry:
    """Calls `function` once, from C, as an audit hook."""

    def __init__(self, function: FunctionType) -> None:
        self._function: FunctionType | None = function
        self.hook: Any = functools.partial(range, self)
        # Without this, debuggers, profilers and coverage see nothing of what an audit hook calls.
        self.hook.__dict__["__cantrace__"] = True

    @property
    def __index__(self) -> FunctionType | None:
        _silence(self.hook)
        # A reference to it would keep the script's globals alive when the interpreter clears the modules at its end.
        function = self._function
        self._function = None
        return function


_entries: list[_Entry] = []
"""Kept: the interpreter has only borrowed the entry while the script runs."""


def watch(runtime: RuntimeInterface, publish: Callable[[], None], run_module: Callable[[str], None]) -> None:
    """Get ready for the script, however it is started. `run_module` is told of `python -m NAME`."""

    def on_event(event: str, args: tuple[Any, ...]) -> None:
        if event == "cpython.run_module":
            run_module(args[0])
        elif event in ("cpython.run_command", "cpython.run_stdin"):
            runtime.disable("the script was given with -c or on standard input; only files and -m are protected")
        elif event == "cpython.run_file":
            function = _prepare_or_disable(args[0], runtime, publish)
            if function is not None:
                _entries.append(_Entry(function))
                sys.addaudithook(_entries[-1].hook)
        else:
            return
        _silence(hook)

    hook = functools.partial(on_event)
    sys.addaudithook(hook)


def _prepare_or_disable(filename: str, runtime: RuntimeInterface, publish: Callable[[], None]) -> FunctionType | None:
    """Return the script's module as a function, or None if the interpreter should go on by itself."""
    try:
        return _prepare(filename, runtime, publish)
    except (OSError, SyntaxError, ValueError, Warning):
        return None  # the script's own; the interpreter comes upon it too, and tells the user
    except UnsupportedError as e:
        reason = str(e)
    except Exception as e:  # noqa: BLE001 - whatever is wrong with us, the script runs
        reason = f"{filename} could not be rewritten: {type(e).__name__}: {e}"
    runtime.disable(reason)
    return None


def _prepare(filename: str, runtime: RuntimeInterface, publish: Callable[[], None]) -> FunctionType:
    if sys.flags.inspect:
        raise UnsupportedError("the script runs with -i")
    source = _read(filename)
    sites.note_text(filename, source)
    made = instrument(source, filename, main=True)
    if made.warned:
        compile(source, filename, "exec", dont_inherit=True)  # issues the warnings
    main = sys.modules["__main__"].__dict__
    if "__file__" not in main:
        main["__file__"] = filename
        main["__cached__"] = None
    main["__loader__"] = SourceFileLoader("__main__", filename)
    sites.INSTRUMENTED_FILES.add(filename)
    if made.sites or made.next_calls:
        sites.register(filename, made.sites, made.code, made.plain)
        publish()
    script_end.expect(runtime, from_file=True)
    return FunctionType(made.code, main, "<module>")


def _read(filename: str) -> bytes:
    """Return the source. Raises OSError, and UnsupportedError where there is none (reading a pipe would take it away)."""
    if not stat.S_ISREG(os.stat(filename).st_mode):
        raise UnsupportedError(f"{filename} is no regular file")
    with open(filename, "rb") as file:
        source = file.read()
    if filename.endswith(".pyc") or source[:2] == importlib.util.MAGIC_NUMBER[:2]:
        raise UnsupportedError(f"{filename} holds compiled code, not source")
    return source
