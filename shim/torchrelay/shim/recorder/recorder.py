"""Records what a training script computes: after each optimizer step one line with digests, in a file for each rank.

It knows nothing of migrations, so that it can judge them. A process that takes over a rank goes on in that rank's file. Steps
have no numbers: two runs are compared by the order of what their lines contain, and a step that is done again repeats a line.

It reads tensors and draws nothing. Any error of its own ends the recording of this process, says so in the file, and lets the
script go on. This file is loaded by its path, alone: it imports the standard library, and torch once the script has done so.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import hashlib
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

VARIABLE = "TORCHRELAY_RECORD"
POLL_S = 0.02
LEAST_STEP_S = 0.3
"""A planned move stops at least so far ahead, and two steps: of eight steps the fifth or sixth then."""
OTHERS_S = 60.0
"""How long a rank that has come to the last step waits for the others."""
END_S = 20.0
"""How long the script may take to end after that."""


def start(settings: str, folder: str) -> None:
    """Begin to record.

    `settings`: the JSON object of `cli.drill.recording`; `folder`: that of this file, which is on PYTHONPATH.
    """
    found = json.loads(settings)
    sys.meta_path.insert(0, _Watch(Recorder(found, folder)))


class _Watch:
    """Finds no module; each question is an occasion to see whether torch's optimizers are there by now."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        optimizers = sys.modules.get("torch.optim.optimizer")
        if hasattr(optimizers, "register_optimizer_step_post_hook") and hasattr(optimizers, "Optimizer"):
            with contextlib.suppress(ValueError):  # another thread was first
                sys.meta_path.remove(self)
                self._recorder.install(optimizers)


class Recorder:
    def __init__(self, settings: dict[str, Any], folder: str) -> None:
        self._settings = settings
        self._folder = folder
        self._process = os.getpid()
        self._is_stopped = False
        atexit.register(self._end_if_stopped)  # before all others, so that it is called behind them
        self._file = -1
        self._hooked = False
        self._failed = False
        self._count = 0
        self._stepped_s = 0.0
        self._last: dict[str, str] | None = None
        self._numbers: dict[int, int] = {}
        self._optimizers: list[weakref.ref[Any]] = []
        self._kept: list[Any] = []
        self._roots: dict[int, list[weakref.ref[Any]]] = {}
        if "RANK" in os.environ:
            self._leave_environment()

    def install(self, optimizers: Any) -> None:
        """Record from the first optimizer on: torchrelay's own hooks are there by then, and act first."""
        original = optimizers.Optimizer.__init__

        @functools.wraps(original)
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            if not self._hooked:
                self._hooked = True
                optimizers.register_optimizer_step_post_hook(self._after_step)
                atexit.register(self._at_exit)
            original(optimizer, *args, **kwargs)

        optimizers.Optimizer.__init__ = init

    def _leave_environment(self) -> None:
        os.environ.pop(VARIABLE, None)
        path = os.environ.get("PYTHONPATH")
        if path is not None:
            rest = [entry for entry in path.split(os.pathsep) if entry != self._folder]
            if rest:
                os.environ["PYTHONPATH"] = os.pathsep.join(rest)
            else:
                del os.environ["PYTHONPATH"]

    # One line.

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        entered_s = time.monotonic()
        if self._failed or os.getpid() != self._process or "RANK" not in os.environ:
            return
        try:
            if self._settings.get("times_only"):
                self._note_time(optimizer)
                return
            parts = self._parts(optimizer)
            if parts == self._last:
                return  # an optimizer around the one that has just stepped, or a step that has changed nothing
            self._last = parts
            self._count += 1
            self._write(
                {
                    "step": parts,
                    "optimizer": self._number(optimizer),
                    "entered_s": entered_s,
                    "left_s": time.monotonic(),
                    "memory_bytes": _memory_bytes(),
                }
            )
        except Exception as e:  # noqa: BLE001 - a script that cannot be recorded has to run all the same
            self._give_up(e)
            return
        self._hold()
        if self._is_last(parts):
            self._stop()

    def _note_time(self, optimizer: Any) -> None:
        """Write when a step was, for the optimizer that steps first.

        That is the time, the thread's processor time, and the optimizer's own number of the step, or None.
        """
        if self._number(optimizer) == 0:
            at = {"unix_s": time.time(), "thread_s": time.thread_time()}
            self._write({"number": _counted_steps(optimizer), **at})

    def _give_up(self, error: Exception) -> None:
        self._failed = True
        with contextlib.suppress(OSError):
            self._write({"unrecorded": f"{type(error).__name__}: {error}"})

    def _write(self, record: dict[str, Any]) -> None:
        if self._file < 0:
            self._leave_environment()
            path = os.path.join(self._settings["folder"], f"rank-{os.environ['RANK']}.jsonl")
            # Not by `open`, which torchrelay's joiners and checks see to.
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.write(self._file, (json.dumps({"process": self._process, **record}) + "\n").encode())

    def _number(self, optimizer: Any) -> int:
        """Return the optimizer's number, in the order in which optimizers make their first steps."""
        known = self._numbers.get(id(optimizer))
        if known is None:
            self._optimizers.append(weakref.ref(optimizer))
            if self._settings.get("times_only"):
                self._kept.append(optimizer)  # its parameters are looked at in the end alone
            known = self._numbers[id(optimizer)] = len(self._optimizers) - 1
        return known

    def _parts(self, optimizer: Any) -> dict[str, str]:
        import torch

        with torch._C.DisableTorchFunction(), torch.no_grad():
            groups = optimizer.param_groups
            parameters = [p for group in groups for p in group["params"]]
            return {
                "parameters": _digest(_in_any_order(group["params"]) for group in groups),
                "optimizer state": _digest(
                    _in_any_order(map(optimizer.state.get, group["params"])) for group in groups
                ),
                "hyperparameters": _digest({k: v for k, v in g.items() if k != "params"} for g in groups),
                "buffers": _digest(self._buffers(optimizer, parameters)),
                **_generators(torch),
            }

    def _buffers(self, optimizer: Any, parameters: list[Any]) -> Iterator[Any]:
        """Yield the buffers of the modules that have the parameters, and of those around and below these."""
        roots = self._roots.get(id(optimizer))
        if roots is None:
            roots = self._roots[id(optimizer)] = [weakref.ref(m) for m in _root_modules(parameters)]
        there = [root for reference in roots if (root := reference()) is not None]
        seen: set[int] = set()
        found = []
        for root in sorted(there, key=lambda root: [name for name, _ in root.named_buffers()]):
            # Each once, and without the names above it: whether a wrapper that the script has dropped is still there is chance.
            modules = [m for m in root.modules() if id(m) not in seen]
            seen.update(map(id, modules))
            found.append([(name, buffer) for m in modules for name, buffer in m._buffers.items()])
        yield from (buffers for buffers in found if buffers)

    # The end.

    def _hold(self) -> None:
        """Wait as long as the drill asks for: small scripts would end before the spare of a planned move is ready."""
        hold = self._settings.get("hold")
        slow = self._settings.get("slow")
        if slow and os.path.exists(slow):
            time.sleep(max(self._stepped_s + LEAST_STEP_S - time.monotonic(), 0.0))
        self._stepped_s = time.monotonic()
        while hold and os.path.exists(hold):
            time.sleep(POLL_S)

    def _is_last(self, parts: dict[str, str]) -> bool:
        at = self._settings.get("stop_at")
        if at:
            wanted = at.get(os.environ["RANK"])
            return bool(wanted) and all(parts.get(name) == value for name, value in wanted.items())
        return bool(0 < self._settings.get("stop_after", 0) <= self._count)

    def _stop(self) -> None:
        """End the script after this step, as `sys.exit(0)` in it would, once no rank needs another one any more."""
        self._failed = self._is_stopped = True
        self._write({"stopped": True})
        ranks = int(os.environ.get("WORLD_SIZE", "1"))
        folder = self._settings["folder"]
        end_s = time.monotonic() + OTHERS_S
        with open(os.path.join(folder, f"stopped-{os.environ['RANK']}"), "w", encoding="utf-8"):
            pass
        while time.monotonic() < end_s:
            if all(os.path.exists(os.path.join(folder, f"stopped-{rank}")) for rank in range(ranks)):
                break
            time.sleep(POLL_S)
        late = threading.Timer(END_S, os._exit, (0,))
        late.daemon = True
        late.start()
        raise SystemExit(0)

    def _end_if_stopped(self) -> None:
        """Spare a script that is cut off the interpreter's own end: torch may abort there while a process group has threads."""
        if self._is_stopped and os.getpid() == self._process:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(AttributeError, OSError, ValueError):  # none, closed, or nobody reads it
                    stream.flush()
            os._exit(0)

    def _at_exit(self) -> None:
        if os.getpid() != self._process or self._failed or self._file < 0:
            return
        try:
            import torch

            left = [o for reference in self._optimizers if (o := reference()) is not None]
            final = _generators(torch)
            if len(left) == len(self._optimizers):
                final["parameters"] = _digest(_in_any_order(g["params"]) for o in left for g in o.param_groups)
            self._write({"end": final, "memory_bytes": _memory_bytes()})
        except Exception as e:  # noqa: BLE001 - as after a step
            self._give_up(e)


# Digests.


def _digest(values: Iterable[Any]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for value in values:
        _feed(digest, value)
    return digest.hexdigest()


def _in_any_order(values: Iterable[Any]) -> list[bytes]:
    """Return the digests of values in an order of their own: an optimizer may be given a set, whose order is that of addresses."""
    return sorted(_digest([value]).encode() for value in values)


def _feed(digest: Any, value: Any) -> None:
    """Feed a value to the digest, by its content alone; of objects that are no data only the class counts."""
    import torch

    if isinstance(value, torch.Tensor):
        _feed_tensor(digest, value)
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            digest.update(f"{key}=".encode())
            _feed(digest, value[key])
    elif isinstance(value, list | tuple):
        digest.update(f"[{len(value)}".encode())
        for item in value:
            _feed(digest, item)
    elif isinstance(value, bytes):
        digest.update(value)
    elif value is None or isinstance(value, bool | int | float | complex | str):
        digest.update(repr(value).encode() + b";")
    elif hasattr(value, "tobytes") and hasattr(value, "dtype"):  # of numpy
        digest.update(f"{value.dtype}{getattr(value, 'shape', ())}".encode() + value.tobytes())
    else:
        digest.update(type(value).__qualname__.encode() + b";")


def _feed_tensor(digest: Any, tensor: Any) -> None:
    local = getattr(tensor, "_local_tensor", None)  # of a DTensor: what this rank has of it
    tensor = (tensor if local is None else local).detach()
    digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    if tensor.device.type == "meta" or not tensor.numel():
        return
    plain = tensor.cpu().contiguous()
    size_bytes = plain.numel() * plain.element_size()
    # The bytes are read through their address: numpy lacks some types of torch, and need not be there.
    digest.update((ctypes.c_char * size_bytes).from_address(plain.data_ptr()))


def _generators(torch: Any) -> dict[str, str]:
    """Return the digests of each library's generators apart: a script that seeds one may leave the others to chance, unused."""
    found = {"torch's generator": _digest([torch.default_generator.get_state()])}
    if "random" in sys.modules:
        found["Python's generator"] = _digest([sys.modules["random"].getstate()])
    if "numpy.random" in sys.modules:
        found["numpy's generator"] = _digest([sys.modules["numpy.random"].get_state()])
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["the device's generator"] = _digest([torch.cuda.get_rng_state()])
    return found


def _root_modules(parameters: list[Any]) -> list[Any]:
    """Return modules that have one of the parameters somewhere in them, and that no other module holds."""
    import gc

    import torch

    ours = {id(p) for p in parameters}
    # By type: an isinstance would call into proxies and lazy objects of the script.
    modules = [m for m in gc.get_objects() if issubclass(type(m), torch.nn.Module) and "_modules" in m.__dict__]
    holders: dict[int, list[Any]] = {}
    for module in modules:
        for child in module._modules.values():
            holders.setdefault(id(child), []).append(module)
    seen: set[int] = set()
    roots = []
    to_visit = [m for m in modules if any(id(p) in ours for p in m._parameters.values())]
    while to_visit:
        module = to_visit.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        above = holders.get(id(module), [])
        to_visit += above
        if not above:
            roots.append(module)
    return roots


def _counted_steps(optimizer: Any) -> int | None:
    """Return the optimizer's own count of its steps, or None. A restart or a joiner puts it back with the optimizer's state."""
    for state in optimizer.state.values():
        if isinstance(state, dict) and "step" in state:
            return int(state["step"])
    return None


def _memory_bytes() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
