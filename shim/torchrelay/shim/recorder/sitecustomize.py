"""Loaded by Python's `site` in every process of a drill's run, with torchrun and with torchrelay alike: lets the recorder in.

The folder of this file is first on PYTHONPATH. A rank takes it off again, and the recorder's variable out of the environment,
so that what the script starts is not recorded.
"""

import os
import sys

VARIABLE = "TORCHRELAY_RECORD"
"""As in torchrelay.protocol.names, which is not imported here: a script must not find our packages because it is recorded."""


def leave_path() -> str:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != here]
    sys.path_importer_cache.pop(here, None)
    del sys.modules["sitecustomize"]
    return here


def let_recorder_in(folder: str, settings: str) -> None:
    try:
        from importlib.util import module_from_spec, spec_from_file_location

        spec = spec_from_file_location("torchrelay_recorder", os.path.join(folder, "recorder.py"))
        assert spec is not None
        assert spec.loader is not None
        recorder = module_from_spec(spec)
        sys.modules[spec.name] = recorder
        spec.loader.exec_module(recorder)
        recorder.start(settings, folder)
    except Exception as e:  # noqa: BLE001 - the script must run, whatever is wrong with us
        text = f"torchrelay drill: this process is not recorded: {type(e).__name__}: {e}\n"
        try:  # noqa: SIM105 - what is imported here is there before the script imports anything
            os.write(2, text.encode(errors="backslashreplace"))
        except OSError:
            pass  # nobody is there to read it


_folder = leave_path()
try:
    # This imports the one that this file shadows. Where there is none, `site` takes the error for just that.
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
finally:
    if os.environ.get(VARIABLE):
        let_recorder_in(_folder, os.environ[VARIABLE])
