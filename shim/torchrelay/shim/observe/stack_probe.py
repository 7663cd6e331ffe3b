"""What is the training thread doing? Looked at from a thread of the shim's own, on the agent's word.

Nothing of the script's is called or changed, no signal is used. The looking thread needs the interpreter's lock like any other:
if the training thread keeps it, nobody answers, and the agent looks from outside.
"""

from __future__ import annotations

import dis
import functools
import linecache
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, Protocol

import torch

from torchrelay.protocol.errors import TorchrelayError
from torchrelay.protocol.messages import Explain, Explained
from torchrelay.shim.adapters.cpython.frames import is_module_frame, read_locals
from torchrelay.shim.adapters.process_groups import agent_store
from torchrelay.shim.agent_link.link import AgentLink
from torchrelay.shim.comm.generations.communicators import Communicators
from torchrelay.shim.script.hidden_frames import is_ours

SAMPLE_S = 0.02
_LEAST_SAMPLES = 8
_MOST_WATCHES = 3
"""A verdict waits for the answer for `explain_grace_s`, which is longer."""
_MAX_FRAMES = 60
_MAX_NAMES = 64
_FAULTS = "fault_injection.py"
"""A fault of --inject stands for what the user's own code might do."""
_VALUES = (int, float, complex, bool, str, bytes, type(None))
_SIZED = (list, dict, set, tuple, bytearray)

_COMMUNICATE = ("torch.autograd", "torch.distributed", "torch.nn.parallel", "torch._inductor")
"""Modules whose code calls into C++ that communicates: a backward with a reducer in it, for example, or compiled code."""

Sight = tuple[Any, ...]


class WatchedEngine(Protocol):
    @property
    def comms(self) -> Communicators: ...

    def only_may_wait(self) -> bool: ...
    def communicates_beside(self) -> bool: ...


def answer(order: Explain, link: AgentLink, engine: WatchedEngine | None) -> None:
    """Watch the main thread and the connections, and report. Runs on a thread of its own."""
    ident = threading.main_thread().ident
    assert ident is not None
    comms = engine.comms if engine is not None else None
    sockets = comms.own_sockets() if comms is not None else set()
    if comms is not None:
        comms.links.probe(sockets)
    stack = stack_of(sys._current_frames().get(ident))
    cpu_clock = time.pthread_getcpuclockid(ident)
    motion = watch(
        lambda: sys._current_frames().get(ident),
        order.watch_s,
        time.sleep,
        time.monotonic,
        lambda: time.clock_gettime(cpu_clock),
    )
    links = comms.links.look(sockets, carry_all=not comms.have_device()) if comms is not None else ()
    is_covered = motion == "still" and engine is not None and engine.only_may_wait() and not _waits_on_device(comms)
    own = is_covered and in_own_code(sys._current_frames().get(ident))
    explained = Explained(
        order.request,
        stack,
        motion,
        "its own process",
        links=links,
        in_own_code=own,
        may_be_woken=engine is not None and engine.communicates_beside(),
        own_sockets=tuple(sorted(sockets | agent_store.connections(os.environ))),
    )
    link.send(explained)


def _waits_on_device(comms: Communicators | None) -> bool:
    """Return whether a device waits for peers; also where that cannot be asked."""
    try:
        return comms is None or comms.waits_on_device()
    except (RuntimeError, LookupError, TorchrelayError):
        return True


def in_own_code(frame: FrameType | None) -> bool:
    """Return whether the innermost call is of code that waits for no peers by itself.

    That is the script's code, or a library's that it has called.
    """
    for each in _frames(frame):
        module = str(each.f_globals.get("__name__"))
        if any(module == known or module.startswith(f"{known}.") for known in _COMMUNICATE):
            return False
        if module.partition(".")[0] not in {"torch", *sys.stdlib_module_names}:
            return True
    return False


def stack_of(frame: FrameType | None) -> tuple[str, ...]:
    """Return lines `function (file:line): source`, innermost first; calls of ours are left out."""
    lines = []
    for each in _frames(frame):
        code = each.f_code
        source = linecache.getline(code.co_filename, each.f_lineno).strip()
        lines.append(f"{code.co_name} ({code.co_filename}:{each.f_lineno})" + (f": {source}" if source else ""))
    return tuple(lines)


def watch(
    look: Callable[[], FrameType | None],
    watch_s: float,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
    computed: Callable[[], float],
) -> str:
    """Return how the thread moves: see messages.Explained. `computed`: how much processor time it has used, in seconds.

    `moving` is a thread that shows something new for twice `watch_s`. One that has had nothing new for half of it goes over the
    same ground: it circles where it was at several places in the second half of that, and has computed for a quarter of `watch_s`
    meanwhile. One that hardly gets a processor shows nothing new either: it is watched for longer, and is `moving` in the end.
    """
    start_s = new_s = clock()
    new_computed_s = computed()
    same = 0
    known: set[Sight] = set()
    seen: list[tuple[tuple[int, int], bool]] = []
    """Since something was new: the place, and whether the code is surely not inside of C there."""
    while True:
        if same >= _LEAST_SAMPLES and clock() - new_s >= watch_s / 2:
            late = seen[len(seen) // 2 :]  # on its way to a long call of C it may be at several places, too
            if not any(runs for _, runs in late) and len({place for place, _ in late}) == 1:
                return "still"
            if computed() - new_computed_s >= watch_s / 4:
                return "circling"
            if clock() - start_s > _MOST_WATCHES * watch_s:
                return "moving"
        sleep(SAMPLE_S)
        seen_now = _sample(look())
        if seen_now is None:
            return "moving"
        sight, place, runs = seen_now
        same += 1
        if sight not in known:
            if clock() - start_s > 2 * watch_s:
                return "moving"
            known.add(sight)
            same = 0
            new_s = clock()
            new_computed_s = computed()
            seen.clear()
        seen.append((place, runs))


def _sample(frame: FrameType | None) -> tuple[Sight, tuple[int, int], bool] | None:
    """Return the sight, the place and whether the code surely runs there; None without a frame.

    Nobody holds the frame behind that: what it has at hand would outlive its function, such as a data set that is to be closed.
    """
    if frame is None:
        return None
    return _sight(frame), (id(frame.f_code), frame.f_lasti), _runs(frame)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    count = 0
    while frame is not None and count < _MAX_FRAMES:
        if not is_ours(frame) or frame.f_code.co_filename.endswith(_FAULTS):
            count += 1
            yield frame
        frame = frame.f_back


def _sight(frame: FrameType) -> Sight:
    """Return which code runs, and everything that it has at hand, as far as one can tell it apart."""
    frames = list(_frames(frame))
    return tuple(id(f.f_code) for f in frames), tuple(_at_hand(f) for f in frames)


def _at_hand(frame: FrameType) -> tuple[Any, ...]:
    known: list[Any] = []
    if not is_module_frame(frame):
        values = read_locals(frame, frame.f_code.co_varnames[:_MAX_NAMES])
        known += [_look(value, into=True) for value in values.values()]
    for name in frame.f_code.co_names[:_MAX_NAMES]:
        if name in frame.f_globals:
            known.append(_look(frame.f_globals[name], into=True))
    return tuple(known)


def _look(value: Any, *, into: bool) -> Any:
    kind = type(value)
    if kind in _VALUES:
        return value if kind not in (str, bytes) else (len(value), value[:_MAX_NAMES])
    if kind in _SIZED:
        return id(value), len(value)
    if issubclass(kind, torch.Tensor):
        return id(value), 0 if value.is_inference() else value._version
    below = _attributes(value) if into and not issubclass(kind, type) else None
    if type(below) is not dict or len(below) > _MAX_NAMES:
        return id(value)
    return id(value), tuple(_look(v, into=False) for v in list(below.values()))


def _attributes(value: Any) -> Any:
    try:
        return object.__getattribute__(value, "__dict__")  # not what the script's class makes of it
    except AttributeError:
        return None


def _runs(frame: FrameType) -> bool:
    """Return whether the innermost code is at a jump or at a function's begin. Elsewhere it may be inside of C for long."""
    operation = _operations(frame.f_code).get(frame.f_lasti, "")
    return "JUMP" in operation or operation == "RESUME"


@functools.lru_cache(maxsize=64)
def _operations(code: CodeType) -> dict[int, str]:
    return {instruction.offset: instruction.opname for instruction in dis.get_instructions(code)}
