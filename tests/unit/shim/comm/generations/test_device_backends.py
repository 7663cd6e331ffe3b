"""Communicators whose collectives run on a device, without one: gloo plays a library that has to be aborted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from torchrelay.protocol.logs.log_lines import LogLines, LogPart
from torchrelay.shim.adapters.process_groups import sockets
from torchrelay.shim.backends import registry
from torchrelay.shim.backends.gloo import Gloo
from torchrelay.shim.comm.generations import communicators
from torchrelay.shim.comm.generations.communication_failure import is_communication_failure
from torchrelay.shim.comm.generations.communicators import Communicators
from torchrelay.shim.comm.generations.generation_store import serve_store

SECRET = bytes(range(32))


class Recorded(Gloo):
    """A library on a device that writes down what it is told to do."""

    on_device = True

    def __init__(self, story: list[str]) -> None:
        self.story = story

    def free(
        self, communicators: Iterable[Any], log: LogLines, stuck: Callable[[str], None] = lambda reason: None
    ) -> None:
        self.story += ["free" for _ in communicators]

    def await_freed(self, deadline_s: float) -> None:
        self.story.append("await freed")

    def check_device(self, device: torch.device) -> None:
        self.story.append("check device")

    def synchronize(self) -> None:
        self.story.append("synchronize")

    def failure(self, communicator: Any) -> str:
        return "it has failed" if "fails" in self.story else ""

    def waits(self) -> bool:
        return "waits" in self.story


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    told: list[str] = []
    monkeypatch.setitem(registry.BACKENDS, "gloo", Recorded(told))
    monkeypatch.setattr(communicators, "current", lambda device: device)
    shut_down = sockets.shut_down

    def shut(wanted: set[str]) -> int:
        told.append("shut down")
        return shut_down(wanted)

    monkeypatch.setattr(sockets, "shut_down", shut)
    return told


@pytest.fixture
def comms(story: list[str]) -> Iterator[Communicators]:
    """A job of one rank, in its first generation, whose group counts for one of two."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    from torch.distributed import distributed_c10d as c10d

    c10d._world.pg_group_ranks[c10d._get_default_group()] = {0: 0, 1: 1}
    made = Communicators(0, 1, "127.0.0.1", LogLines(LogPart.SHIM))
    made.connect_gate(dist.HashStore(), SECRET)
    yield made
    dist.destroy_process_group()


def test_a_gate_is_passed_only_when_the_device_has_done_what_was_queued(comms: Communicators, story: list[str]) -> None:
    comms.gate(1)
    assert story == ["synchronize"]


def test_what_a_device_says_after_its_communicators_were_broken_is_no_result(
    comms: Communicators, story: list[str]
) -> None:
    comms.synchronize()
    assert not comms.leaves_garbage()
    comms.break_all()
    assert comms.leaves_garbage()
    with pytest.raises(RuntimeError, match="generation 0 was broken under a collective") as broken:
        comms.synchronize()
    assert is_communication_failure(broken.value)
    with pytest.raises(RuntimeError, match="was broken"):
        comms.gate(1)


def test_a_communicator_that_has_failed_by_itself_is_known(comms: Communicators, story: list[str]) -> None:
    assert comms.failure() == ""
    story.append("fails")
    assert comms.failure() == "it has failed"


def test_sockets_are_shut_down_before_anything_is_aborted_since_nobody_may_pass_the_gate_on_garbage(
    comms: Communicators, story: list[str]
) -> None:
    comms.break_all()
    assert story == ["shut down", "free"]


def test_a_process_that_does_not_come_loose_says_so_to_whoever_made_its_communicators(
    comms: Communicators, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    library = registry.BACKENDS["gloo"]
    monkeypatch.setattr(library, "free", lambda communicators, log, stuck: stuck(f"{len(communicators)} do not end"))
    made = Communicators(0, 1, "127.0.0.1", LogLines(LogPart.SHIM), stuck=told.append)
    made.break_all()
    assert told == ["1 do not end"]


def test_communicators_that_a_planned_move_leaves_are_given_back_when_it_is_committed_and_not_before(
    comms: Communicators, story: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(communicators.groups, "group_ranks", lambda group: [0])
    _store, port = serve_store()
    comms.rebuild(1, "127.0.0.1", port, SECRET)
    assert story == ["await freed", "check device"]
    comms.committed()
    assert story == ["await freed", "check device", "free", "await freed"]
    comms.synchronize()


def test_no_other_thread_looks_at_a_groups_communicators_while_they_are_exchanged_and_let_go_of(
    comms: Communicators, story: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch reads and writes them without Python's lock: the process would crash."""
    looks: list[str] = []
    looking: list[threading.Thread] = []
    install = communicators.groups.install

    def look_from_another_thread() -> None:
        thread = threading.Thread(target=lambda: looks.append(comms.failure()))
        thread.start()
        looking.append(thread)
        thread.join(0.2)
        assert looks == [], "it waits"

    def exchange(*args: Any) -> None:
        look_from_another_thread()
        install(*args)

    def forget(group: Any) -> bool:
        looks.clear()
        look_from_another_thread()
        return True

    monkeypatch.setattr(communicators.groups, "group_ranks", lambda group: [0])
    monkeypatch.setattr(communicators.groups, "install", exchange)
    monkeypatch.setattr(comms, "_old", SimpleNamespace(forget=forget))
    _store, port = serve_store()
    comms.rebuild(1, "127.0.0.1", port, SECRET)
    looking[0].join()
    comms.committed()
    for thread in looking:
        thread.join()
    assert len(looking) == 2
    assert looks == [""]


def test_what_was_aborted_is_not_aborted_again_and_is_let_go_of_only_when_that_is_over(
    comms: Communicators, story: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(communicators.groups, "group_ranks", lambda group: [0])
    comms.break_all()
    _store, port = serve_store()
    comms.rebuild(1, "127.0.0.1", port, SECRET)
    monkeypatch.setattr(comms, "_forget_old", lambda: story.append("let go"))
    comms.break_previous()
    comms.committed()
    assert story.count("free") == 1
    assert story[-2:] == ["await freed", "let go"]


@pytest.mark.parametrize("is_planned", [True, False])
def test_communicators_of_the_generation_before_are_not_aborted_with_one_that_is_not_built_yet(
    is_planned: bool, comms: Communicators, story: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(communicators.groups, "group_ranks", lambda group: [0])
    if not is_planned:
        comms.break_all()
    _store, port = serve_store()
    seen: list[list[str]] = []

    def abandon(*args: object) -> None:
        story.clear()
        comms.break_new(1)
        comms.break_all()
        seen.append([*story])
        raise RuntimeError("a peer is gone")

    monkeypatch.setattr(comms, "_connect_gate", abandon)
    with pytest.raises(RuntimeError, match="a peer is gone"):
        comms.rebuild(1, "127.0.0.1", port, SECRET)
    assert seen[0].count("free") == (1 if is_planned else 0), "by break_all, and not again"


def test_an_abandoned_move_frees_the_new_communicators_and_keeps_those_before(
    comms: Communicators, story: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(communicators.groups, "group_ranks", lambda group: [0])
    _store, port = serve_store()
    comms.rebuild(1, "127.0.0.1", port, SECRET)
    story.clear()
    comms.go_back()
    assert "free" in story
    assert comms.now.number == 0
    comms.synchronize()


def test_an_abort_that_is_stuck_after_a_move_ends_nobody(
    comms: Communicators, story: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(communicators.groups, "group_ranks", lambda group: [0])
    _store, port = serve_store()
    comms.rebuild(1, "127.0.0.1", port, SECRET)

    def stuck(deadline_s: float) -> None:
        raise RuntimeError("torchrelay: it was not aborted")

    monkeypatch.setattr(registry.BACKENDS["gloo"], "await_freed", stuck)
    monkeypatch.setattr(comms, "_forget_old", lambda: story.append("let go"))
    comms.committed()
    assert "let go" not in story
    assert capsys.readouterr().err == "torchrelay: warning: it was not aborted; it is left as it is\n"
    comms.synchronize()


def test_a_rank_waits_on_its_device_if_its_library_says_so(comms: Communicators, story: list[str]) -> None:
    assert not comms.waits_on_device()
    story.append("waits")
    assert comms.waits_on_device()


def test_jobs_without_a_device_do_not_wait_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        made = Communicators(0, 1, "127.0.0.1", LogLines(LogPart.SHIM))
        assert not made.have_device()
        assert not made.waits_on_device()
        assert made.notes() == ()
        made.break_all()
        made.synchronize()
    finally:
        dist.destroy_process_group()


def test_libraries_count_the_collectives_that_were_called_on_them(comms: Communicators) -> None:
    """By which a graph that holds collectives is told from another one."""
    before = registry.called_on_devices()
    for _ in range(3):
        dist.all_reduce(torch.ones(1))
    assert registry.called_on_devices() - before >= 3
