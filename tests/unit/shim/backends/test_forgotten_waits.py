"""A message of gloo that is half received when its connection ends: who waits for it sleeps on, until it is woken by us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from torchrelay.protocol.logs.log_lines import LogLines, LogPart
from torchrelay.shim.adapters.process_groups import sockets
from torchrelay.shim.backends import gloo_waits
from torchrelay.shim.backends.forgotten_waits import LOOK_S, ForgottenWaits

FLOATS = 48 << 20
LONG_S = 100.0
PEER = f"""
import datetime, sys, torch
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, wait_for_workers=False)
group = dist.ProcessGroupGloo(store, 1, 2, datetime.timedelta(seconds={LONG_S}))
group.broadcast(torch.ones({FLOATS}), 1).wait()
group.barrier().wait()
"""


@dataclass
class HalfReceived:
    work: Any
    group: Any
    """Kept, so that its threads live."""


@pytest.fixture
def half_received() -> Iterator[HalfReceived]:
    """A broadcast whose sender has stopped in the middle, with all connections shut down."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    peer = subprocess.Popen([sys.executable, "-c", PEER, str(store.port)])
    try:
        before = set(sockets.tcp_sockets().values())
        group = dist.ProcessGroupGloo(store, 0, 2, timedelta(seconds=LONG_S))
        opened = set(sockets.tcp_sockets().values()) - before
        received = torch.zeros(FLOATS)
        work = group.broadcast(received, 1)
        end_s = time.monotonic() + LONG_S
        while received[0] == 0:
            assert time.monotonic() < end_s
        os.kill(peer.pid, signal.SIGSTOP)
        assert sockets.shut_down(opened) > 0
        assert received[-1] == 0, "all was received: there is nothing to forget"
        yield HalfReceived(work, group)
    finally:
        peer.kill()
        peer.wait()


def _asleep_for_good(work: Any) -> bool:
    """Whether a wait ends with nothing but its own patience. Other errors of the work are raised."""
    try:
        work.wait(timedelta(seconds=4 * LOOK_S))
    except RuntimeError as error:
        if "timed out" in str(error).lower():
            return True
        raise
    return False


def test_gloo_forgets_a_wait_and_the_watch_wakes_it(
    half_received: HalfReceived, capfd: pytest.CaptureFixture[str]
) -> None:
    assert _asleep_for_good(half_received.work), "gloo wakes it by itself: nothing of ours is needed any more"
    waits = ForgottenWaits(LogLines(LogPart.SHIM))
    waits.watch(1)
    with pytest.raises(RuntimeError, match="half done"):
        half_received.work.wait(timedelta(seconds=LONG_S))
    waits.renewed(1)
    assert "gloo had left asleep" in capfd.readouterr().err


def test_a_watch_that_begins_when_communicators_are_new_already_wakes_nobody(half_received: HalfReceived) -> None:
    waits = ForgottenWaits(LogLines(LogPart.SHIM))
    waits.renewed(2)
    waits.watch(2)
    assert _asleep_for_good(half_received.work)
    waits.watch(3)
    with pytest.raises(RuntimeError, match="half done"):
        half_received.work.wait(timedelta(seconds=LONG_S))
    waits.renewed(3)


def test_waits_that_nobody_waits_for_are_freed_before_the_communicators_are_built_anew(
    half_received: HalfReceived,
) -> None:
    ForgottenWaits(LogLines(LogPart.SHIM)).free_all()
    assert half_received.work.is_completed()
    with pytest.raises(RuntimeError, match="half done"):
        half_received.work.wait()


def test_a_thread_that_sleeps_elsewhere_is_left_alone() -> None:
    never = threading.Event()
    thread = threading.Thread(target=never.wait, daemon=True)
    thread.start()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    group = dist.ProcessGroupGloo(store, 0, 1, timedelta(seconds=LONG_S))
    asleep = gloo_waits.sleepers()
    assert thread.native_id in {sleeper.thread for sleeper in asleep}
    assert gloo_waits.GlooWaits().buffers(asleep) == set()
    ForgottenWaits(LogLines(LogPart.SHIM)).free_all()
    assert thread.is_alive()
    never.set()
    thread.join()
    assert group.rank() == 0


def test_a_thread_that_has_run_in_between_is_another_sleeper() -> None:
    first = threading.Semaphore(0)
    answered = threading.Semaphore(0)

    def serve() -> None:
        while True:
            first.acquire()
            answered.release()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    before = _of(thread)
    assert _of(thread) == before
    first.release()
    answered.acquire()
    assert _of(thread) != before


def _of(thread: threading.Thread) -> gloo_waits.Sleeper:
    """As soon as it sleeps."""
    end_s = time.monotonic() + LONG_S
    while time.monotonic() < end_s:
        for sleeper in gloo_waits.sleepers():
            if sleeper.thread == thread.native_id:
                return sleeper
    raise AssertionError("the thread never slept")


def test_on_a_machine_where_it_was_not_seen_nobody_is_woken(
    half_received: HalfReceived, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="aarch64"))
    waits = ForgottenWaits(LogLines(LogPart.SHIM))
    waits.watch(1)
    waits.free_all()
    assert _asleep_for_good(half_received.work)
    monkeypatch.undo()
    ForgottenWaits(LogLines(LogPart.SHIM)).free_all()
    assert half_received.work.is_completed()
