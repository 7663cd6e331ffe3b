"""A thread is watched from another one, while it runs in circles, works, waits, or is inside of C."""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, FunctionType
from typing import Any

import pytest
import torch

from torchrelay.shim.observe.stack_probe import in_own_code, stack_of, watch

WATCH_S = 0.4


class Stop(Exception):
    pass


class Box:
    """What a loop of the script works on."""

    def __init__(self) -> None:
        self.on, self.count, self.items = True, 0, [0]


def spin(box: Box) -> None:
    while box.on:
        pass


def spin_through_calls(box: Box) -> None:
    def check() -> bool:
        return box.on

    while check():
        pass


def count_locally(box: Box) -> None:
    number = 0
    while box.on:
        number += 1


def count_in_an_attribute(box: Box) -> None:
    while box.on:
        box.count += 1


def grow(box: Box) -> None:
    while box.on:
        box.items.append(0)
        time.sleep(0.001)


def iterate(box: Box) -> None:
    while box.on:
        for item in range(1 << 40):
            if item < 0 or not box.on:
                return


def write_tensor(box: Box) -> None:
    tensor = torch.zeros(4)
    while box.on:
        tensor.add_(1)


def compute_and_then_wait_in_c(box: Box) -> None:
    """Something new for a while, at several places, and then one call of C until the end."""
    for number in range(4):
        time.sleep(0.05 + 0.001 * number)
    while box.on:
        time.sleep(WATCH_S * 4)


def wait_in_c(box: Box) -> None:
    while box.on:
        time.sleep(WATCH_S * 2)


@contextmanager
def running(work: Callable[[Box], None]) -> Iterator[Callable[[], FrameType | None]]:
    box = Box()
    thread = threading.Thread(target=work, args=(box,))
    thread.start()
    try:
        while not _is_in(thread, work):
            time.sleep(0.001)
        yield lambda: sys._current_frames().get(thread.ident or 0)
    finally:
        box.on = False
        thread.join()


def _is_in(thread: threading.Thread, work: Callable[[Box], None]) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code is not work.__code__:
        frame = frame.f_back
    return frame is not None


@pytest.mark.parametrize(
    ("work", "motion"),
    [
        (spin, "circling"),
        (spin_through_calls, "circling"),
        (count_locally, "moving"),
        (count_in_an_attribute, "moving"),
        (grow, "moving"),
        (iterate, "moving"),
        (write_tensor, "moving"),
        (compute_and_then_wait_in_c, "still"),
        (wait_in_c, "still"),
    ],
)
def test_what_brings_nothing_new_runs_in_circles(work: Callable[[Box], None], motion: str) -> None:
    with running(work) as look:
        assert watch(look, WATCH_S, time.sleep, time.monotonic, time.monotonic) == motion


def test_a_thread_that_hardly_gets_a_processor_does_not_circle() -> None:
    """It is where it was since it has not run."""
    with running(spin) as look:
        assert watch(look, WATCH_S, time.sleep, time.monotonic, lambda: 0.0) == "moving"


def test_a_thread_that_is_gone_moves() -> None:
    assert watch(lambda: None, WATCH_S, time.sleep, time.monotonic, time.monotonic) == "moving"


def test_a_stack_begins_with_the_innermost_call_and_shows_lines() -> None:
    with running(wait_in_c) as look:
        while not (calls := stack_of(look()))[0].endswith(": time.sleep(WATCH_S * 2)"):
            time.sleep(0.001)  # the function has begun, and is not there yet
    assert calls[0].startswith(f"wait_in_c ({__file__}:")
    assert any(call.startswith("run (") for call in calls[1:])


def test_an_object_that_computes_its_attributes_is_not_asked() -> None:
    class Touchy:
        def __getattribute__(self, name: str) -> Any:
            raise Stop

        def __eq__(self, other: object) -> bool:
            raise Stop

        def __hash__(self) -> int:
            raise Stop

    def hold(box: Box) -> None:
        touchy = Touchy()
        while box.on:
            pass
        del touchy

    with running(hold) as look:
        assert watch(look, WATCH_S, time.sleep, time.monotonic, time.monotonic) == "circling"


def test_what_the_thread_lets_go_of_after_it_was_watched_is_free() -> None:
    """Before Python 3.13 a frame keeps what it is asked for: an error, which keeps its frames, and communicators with them."""
    watched, freed = threading.Event(), threading.Event()

    def let_go(box: Box) -> None:
        held = Box()
        weakref.finalize(held, freed.set)
        while box.on and not watched.is_set():
            pass
        held = box
        while box.on:
            pass

    with running(let_go) as look:
        assert watch(look, WATCH_S, time.sleep, time.monotonic, time.monotonic) == "circling"
        assert not freed.is_set()
        watched.set()
        assert freed.wait(10)


def test_what_ends_between_two_looks_is_free_at_once() -> None:
    """A script opens its data set anew in each epoch's function, and may not have it open twice."""
    opened: list[weakref.ref[Box]] = []

    def epoch() -> FrameType:
        data = Box()
        opened.append(weakref.ref(data))
        return sys._getframe()

    def sleep(_: float) -> None:
        assert [data() for data in opened] == [None] * len(opened)

    times_s = itertools.count()
    assert watch(epoch, 5.0, sleep, lambda: next(times_s), lambda: 0.0) in ("moving", "circling", "still")
    assert len(opened) > 3


def test_calls_of_ours_are_left_out() -> None:
    ours = FunctionType(wait_in_c.__code__, {"time": time, "WATCH_S": WATCH_S, "__name__": "torchrelay.shim.comm.gate"})

    def call_ours(box: Box) -> None:
        ours(box)

    with running(call_ours) as look:
        while (frame := look()) is not None and frame.f_code is not wait_in_c.__code__:
            time.sleep(0.001)
        calls = stack_of(frame)
    assert calls[0].startswith("call_ours (")


def _innermost(_: FrameType | None) -> FrameType:
    return sys._getframe(1)


def _called(modules: tuple[str, ...]) -> FrameType:
    """The frame of the last of these modules, each of which was called by the one before."""

    def call(further: Any, _: None) -> FrameType:
        return further(None)  # type: ignore[no-any-return]  # the next one, or `_innermost`

    further: Any = _innermost
    for module in reversed(modules):
        further = functools.partial(FunctionType(call.__code__, {"__name__": module}), further)
    return further(None)  # type: ignore[no-any-return]  # as above


HOOK = ("__main__", "torch.autograd", "torch.autograd.graph", "train_hooks")


@pytest.mark.parametrize(
    ("modules", "is_own"),
    [
        (HOOK, True),
        ((*HOOK, "queue", "threading"), True),
        ((*HOOK, "torch._tensor"), True),
        ((*HOOK, "torchrelay.shim.observe.nothing"), True),
        (HOOK[:3], False),  # in C++, where a reducer waits for its peers
        ((*HOOK, "torch.distributed.distributed_c10d"), False),
        ((*HOOK, "torch.distributed._functional_collectives", "torch._ops"), False),
        (("__main__", "torch.nn.modules.module", "torch.nn.parallel.distributed"), False),
        (("__main__", "torch._inductor.runtime.compile_tasks.abc", "torch._ops"), False),
    ],
)
def test_code_that_may_communicate_within_a_backward_is_told_from_the_scripts_own(
    modules: tuple[str, ...], is_own: bool
) -> None:
    assert in_own_code(_called(modules)) is is_own


def test_a_hook_of_a_real_backward_is_the_scripts_own_code() -> None:
    seen = []
    tensor = torch.ones(1, requires_grad=True)
    tensor.register_hook(lambda gradient: seen.append(in_own_code(sys._getframe())))
    torch.autograd.backward(tensor.sum())
    assert seen == [True]
