"""The end of the user's script: what plain Python would do there, and the runtime's last word.

`failed` and `finished` are called by the script's own module, which `instrument` has wrapped. A script that is done is
reported at once: the runtime may have to wait and to serve, and some versions (3.12) start no thread any more when the
interpreter shuts down. A failure is reported when the interpreter starts to shut down: by then its traceback has been
printed, and threads, atexit functions and the process group are still as the script left them. A function registered
with `threading._register_atexit` runs before any that was registered earlier, and before threads are joined.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from dataclasses import dataclass

from torchrelay.shim.bootstrap.runtime_interface import RuntimeInterface
from torchrelay.shim.script.hidden_frames import hide_all

_FILE_INPUT = 257
"""`Py_file_input`."""


@dataclass
class _Script:
    runtime: RuntimeInterface
    from_file: bool
    process: int
    has_ended: bool = False


_script: _Script | None = None


def expect(runtime: RuntimeInterface, *, from_file: bool) -> None:
    """Expect the script's start. `from_file`: as `python FILE`, where the interpreter cleans up in its own way."""
    global _script
    _script = _Script(runtime, from_file, os.getpid())


def _ending() -> _Script | None:
    """Return the script, if this call is the one that ends it: not in a child that it forked, and only once."""
    if _script is None or _script.has_ended or os.getpid() != _script.process:
        return None
    _script.has_ended = True
    return _script


def failed() -> None:
    """Note that an exception leaves the script's module. The interpreter handles it as always once it is raised again."""
    error = sys.exc_info()[1]
    script = _ending()
    if _script is not None and _script.from_file:
        _flush()
        if type(error) is KeyboardInterrupt:
            _note_interrupt()
    if error is None:
        return
    hide_all(error)
    if script is None:
        return
    if not isinstance(error, SystemExit):
        _at_shutdown(script, error, by_exit=False)
    elif error.code is None or error.code == 0:
        _done(script)
    else:
        # The original's traceback would keep the script's objects alive until the process ends.
        _at_shutdown(script, SystemExit(error.code), by_exit=True)


def finished() -> None:
    """Note that the script's last statement is done. Raises SystemExit where the interpreter would run the script once more."""
    if _script is not None and _script.from_file:
        _flush()
    script = _ending()
    if script is not None:
        _done(script)
        _at_shutdown(script, None, by_exit=False)
    if _script is not None and _script.from_file:
        raise SystemExit


def _done(script: _Script) -> None:
    # Ctrl-C may come while the others are not done yet: nothing of the script is left that it could interrupt.
    with contextlib.suppress(KeyboardInterrupt):
        script.runtime.finish(None)


def _at_shutdown(script: _Script, failure: BaseException | None, *, by_exit: bool) -> None:
    failures = [failure]

    def finish() -> None:
        if os.getpid() != script.process:
            return
        if script.from_file and not by_exit:
            # The interpreter does so when a file has run to its end; sys.exit does not get there.
            main = sys.modules["__main__"].__dict__
            main.pop("__file__", None)
            main.pop("__cached__", None)
        # It is taken out: `threading` keeps this function to the very end, and a traceback keeps all that the script has.
        error = failures.pop()
        if error is not None:
            script.runtime.finish(error)

    # A script that is done shutting down already (it called threading._shutdown) has nothing to wait for.
    with contextlib.suppress(RuntimeError):
        threading._register_atexit(finish)  # type: ignore[attr-defined]  # private


def _flush() -> None:
    """Flush both streams, as the interpreter does when a file has run, before it prints a traceback."""
    for stream in (sys.stderr, sys.stdout):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _note_interrupt() -> None:
    """Let the interpreter end by SIGINT, as it does when a file that it runs ends with KeyboardInterrupt.

    It notes that where it evaluates a file's code, in a variable that Python code cannot reach; so it is made to evaluate code that
    does nothing else.
    """
    import ctypes

    run = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.c_char_p, ctypes.c_int, ctypes.py_object, ctypes.py_object, ctypes.c_void_p
    )(("PyRun_StringFlags", ctypes.pythonapi))
    names: dict[str, object] = {}
    with contextlib.suppress(KeyboardInterrupt):
        run(b"raise KeyboardInterrupt", _FILE_INPUT, names, names, None)
