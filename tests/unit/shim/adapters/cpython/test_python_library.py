"""Functions of the Python library are declared on a handle of our own: the script declares those of `ctypes.pythonapi`."""

import subprocess
import sys

_SCRIPT = """
import ctypes
before = {name: (f.argtypes, f.restype) for name, f in vars(ctypes.pythonapi).items() if isinstance(f, ctypes._CFuncPtr)}
import torchrelay.shim.runtime.runtime, torchrelay.shim.bootstrap.torch_hooks, torchrelay.shim.join.joiner
import torchrelay.shim.join.rehearsal, torchrelay.shim.bootstrap.script_end, torchrelay.shim.step.engine
for name, f in vars(ctypes.pythonapi).items():
    if isinstance(f, ctypes._CFuncPtr):
        assert before.get(name) == (f.argtypes, f.restype), name
ctypes.pythonapi.Py_IncRef(ctypes.py_object("as decord calls it"))
ctypes.pythonapi.Py_DecRef.argtypes = [ctypes.py_object]
from torchrelay.shim.adapters.cpython import generator_frames
def numbers():
    yield from range(3)
generator = numbers()
next(generator)
assert generator_frames.WORKS and generator_frames.read(generator) is not None
"""


def test_the_shim_declares_nothing_of_the_shared_handle() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
