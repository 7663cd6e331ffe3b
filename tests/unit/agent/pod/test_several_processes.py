"""The agent beside launchers, several processes, and processes that begin anew, over a real socket."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from support.pod_node_world import LAUNCH, TOKEN, WITHIN_S, WORKER, Shim, World

from torchrelay.agent.connections.shim_server import ShimEvents
from torchrelay.agent.pod.disk import Disk
from torchrelay.agent.pod.shims import PodShims
from torchrelay.protocol import messages as msg
from torchrelay.protocol.errors import RefusedError
from torchrelay.protocol.journals.journal_copy import JournalCopy
from torchrelay.protocol.journals.kept import WHOLE, KeptParts, Slots, own_folder, write_parts
from torchrelay.protocol.names import NO_RANK


def test_a_launcher_is_no_process_of_the_job_and_several_processes_are_told_why(in_world: Any) -> None:
    async def test(w: World) -> None:
        asked: list[Any] = []
        w.node._launchers.connected = lambda worker, hello: asked.append(hello.launcher)  # type: ignore[method-assign]  # in its place for this test
        await w.until(w.config.socket.exists)
        for hello in (
            msg.Hello("train-1", TOKEN, 1, "3", False, launcher=True),
            msg.Hello("train-1", TOKEN, 1, "3", False, {**LAUNCH, "LOCAL_WORLD_SIZE": "2"}),
        ):
            shim = Shim(*await asyncio.open_unix_connection(str(w.config.socket)))
            w._shims.append(shim)
            shim.say(hello)
            assert isinstance(await shim.hear(), msg.Ack)
        rank = await w.shim(launch={**LAUNCH, "LOCAL_WORLD_SIZE": "1"})
        assert isinstance(await rank.hear(), msg.Ack)
        await w.until(lambda: w.session.of(msg.WorkerStarted))
        assert asked == [True, False]
        assert [s.worker for s in w.session.of(msg.WorkerStarted)] == [WORKER]

    in_world(test)


def test_one_of_several_processes_is_not_protected_and_told_so(in_world: Any) -> None:
    async def test(w: World) -> None:
        shim = await w.shim(launch={**LAUNCH, "LOCAL_WORLD_SIZE": "2"})
        await shim.hear()
        begin = await shim.hear()
        assert "starts 2 training processes" in begin.refusal
        assert w.session.of(msg.WorkerStarted) == []

    in_world(test)


def several(local_rank: int, rank: int = 0) -> dict[str, str]:
    """Of one of two processes that torchrun has started."""
    own = {"RANK": str(rank), "LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4"}
    return {**own, "TORCHELASTIC_RUN_ID": "job"}


def test_of_what_torchrun_starts_each_local_rank_is_a_process_of_the_job(in_world: Any) -> None:
    async def test(w: World) -> None:
        shims = [await w.shim(launch=several(n, 2 + n)) for n in range(2)]
        assert all([isinstance(await s.hear(), msg.Ack) for s in shims])
        await w.until(lambda: len(w.session.of(msg.WorkerStarted)) == 2)
        started = {s.rank: s.worker for s in w.session.of(msg.WorkerStarted)}
        assert sorted(started) == [2, 3]
        third = await w.shim(launch=several(1, 3))
        with pytest.raises(asyncio.IncompleteReadError):
            await third.hear()
        assert len(w.session.of(msg.WorkerStarted)) == 2
        at = next(i for i, s in enumerate(shims) if started[2].endswith(str(i + 1)))
        shims[at].close()
        await w.until(lambda: [e.worker for e in w.session.of(msg.WorkerExited)] == [started[2]])
        again = await w.shim(spare=True, launch=several(0, 2))
        assert isinstance(await again.hear(), msg.Ack)
        await w.until(lambda: len(w.session.of(msg.WorkerStarted)) == 3)
        new = w.session.of(msg.WorkerStarted)[-1]
        assert (new.rank, new.worker in started.values()) == (NO_RANK, False)

    in_world(test)


def test_names_are_given_once_by_all_agents_of_a_pod_and_come_back_in_any_order(tmp_path: Path) -> None:
    """Of three processes that an agent before this one knew, the first one has ended, and has been started again."""
    given = tmp_path / "names-given"
    given.write_text("3")
    shims = PodShims(tmp_path / "s", "train-1:0a1b2c3d", "t", ShimEvents(print, print), given)
    assert shims.identify(msg.Hello("train-1", "t", 1, "3", True, several(0))) == "train-1:0a1b2c3d.4"
    for number, local_rank in ((3, 1), (2, 0)):
        name = f"train-1:0a1b2c3d.{number}"
        back = msg.Hello(name, "t", 1, "3", False, several(local_rank), again=True)
        assert shims.identify(back) == name
        with pytest.raises(RefusedError, match="counts as ended"):
            shims.identify(back)
    assert given.read_text() == "4"


def test_one_that_is_parked_and_comes_back_takes_no_protection_from_the_others(in_world: Any) -> None:
    async def test(w: World) -> None:
        await w.until(w.config.socket.exists)
        mark = w.config.run_folder / "protected"
        for number, (rank, is_protected) in enumerate(((2, True), (NO_RANK, False)), 1):
            shim = Shim(*await asyncio.open_unix_connection(str(w.config.socket)))
            w._shims.append(shim)
            name, launch = f"{w.config.node}.{number}", several(number - 1, max(rank, 0))
            spare = rank == NO_RANK
            shim.say(msg.Hello(name, TOKEN, 1, "3", spare, launch, True, 1, 0, is_protected))
            assert isinstance(await shim.hear(), msg.Ack)
        await w.until(lambda: len(w.node.hello().workers) == 2)
        assert mark.exists()

    in_world(test)


def test_marks_tell_a_launcher_whether_the_job_is_protected_and_a_late_process_how_it_ended(in_world: Any) -> None:
    async def test(w: World) -> None:
        shim = await w.shim()
        await shim.hear()
        await w.until(lambda: w.session.of(msg.WorkerStarted))
        protected, over = w.config.run_folder / "protected", w.config.run_folder / "over"
        w.order(msg.Begin(WORKER, "", False))
        assert not protected.exists()
        w.order(msg.Protect(True, ""))
        assert protected.exists()
        w.node._processes[WORKER].pid = 0  # type: ignore[index]  # it is this test
        w.node.agent.ordered(msg.StopJob(75, 15, "no spare is left"))
        await asyncio.wait_for(w.task, WITHIN_S)
        assert not protected.exists()
        assert over.read_text() == "75"

    in_world(test)


def test_a_process_that_has_not_begun_ends_with_a_job_that_is_over(in_world: Any) -> None:
    async def test(w: World) -> None:
        shim = await w.shim()
        await shim.hear()
        await w.until(lambda: w.session.of(msg.WorkerStarted))
        w.node.agent.ordered(msg.StopJob(0, 15, "all ranks are done"))
        assert await shim.hear() == msg.EndNow(0)
        await asyncio.wait_for(w.task, WITHIN_S)

    in_world(test)


def test_a_process_that_is_to_go_back_begins_anew_in_its_place_and_is_told_as_such(in_world: Any) -> None:
    async def test(w: World) -> None:
        first = await w.shim()
        await first.hear()
        await w.until(lambda: w.session.of(msg.WorkerStarted))
        w.order(msg.Begin(WORKER, "", False))
        await first.hear()
        w.node.agent.ordered(msg.Fence(WORKER, again=True))
        assert await first.hear() == msg.EndNow(137, again=True)
        assert w.session.of(msg.WorkerExited) == [], "it lives"
        first.close()
        await w.until(lambda: w.session.of(msg.WorkerExited))
        assert w.session.of(msg.WorkerExited)[0].fenced
        second = await w.shim()
        await second.hear()
        await w.until(lambda: w.session.of(msg.LateWorker))
        again = "train-1:0a1b2c3d.2"
        assert w.session.of(msg.LateWorker) == [msg.LateWorker(again, 1, os.getpid())]
        kinds = [type(m) for m in w.session.sent if getattr(m, "worker", "") == again]
        assert kinds == [msg.WorkerStarted, msg.FromWorker, msg.LateWorker], "known by then"
        w.node.agent.ordered(msg.StartWorker(1))
        assert w.session.of(msg.LateWorker)[-1].pid == 0, "no other one comes"

    in_world(test)


def copy_of_rank_1(kept: str | Path) -> Path:
    """Whole, of boundary 6."""
    slot = Slots(own_folder(Path(kept), 1)).open(6)
    write_parts(slot, KeptParts(6, b"journal", b"set-up", "layout"))
    (slot / WHOLE).write_text("{}")
    return slot


async def begun(w: World, launch: dict[str, str], name: str = WORKER) -> msg.Begin:
    """A process that has come, and what it is told."""
    shim = await w.shim(launch=launch)
    await shim.hear()
    await w.until(lambda: any(s.worker == name for s in w.session.of(msg.WorkerStarted)))
    w.node._processes[name].pid = 0  # type: ignore[index]  # it is this test
    w.order(msg.Begin(name, "", False), name)
    begin = await shim.hear()
    assert isinstance(begin, msg.Begin)
    return begin


async def told(w: World) -> list[str]:
    """Where copies are, as the agent says now."""
    w.session.sent.clear()
    w.node.agent.ordered(msg.FetchKept())
    await w.until(lambda: w.session.of(msg.KeptCopies) and w.session.of(msg.KeptCopies)[-1].last)
    return [copy.directory for copies in w.session.of(msg.KeptCopies) for copy in copies.copies]


def test_copies_are_told_and_forgotten_when_the_job_begins_again(in_world: Any) -> None:
    async def test(w: World) -> None:
        slot = copy_of_rank_1((await begun(w, LAUNCH)).kept)
        assert await told(w) == [str(slot)]
        (copies, _) = w.session.of(msg.KeptCopies)
        assert copies == msg.KeptCopies((msg.KeptCopy(1, 6, str(slot), b"journal", b"set-up", "layout"),), last=False)
        w.node.agent.ordered(msg.RestartWorkers("again"))
        assert await told(w) == []
        assert slot.exists(), "the process that makes them may live still"
        w._shims[0].close()
        await w.shim()
        await w.until(lambda: not slot.exists())

    in_world(test)


def test_what_an_old_neighbour_writes_after_the_job_has_begun_again_is_no_copy(in_world: Any) -> None:
    """Also for an agent that comes after the one that was told of it."""

    async def test(w: World) -> None:
        old = (await begun(w, several(0, 2))).kept
        w.node.agent.ordered(msg.RestartWorkers("again"))
        w._shims[0].close()
        await w.until(lambda: w.node.agent.shims._connected == {})
        new = (await begun(w, several(1, 3), f"{w.config.node}.2")).kept
        late = copy_of_rank_1(old)
        assert await told(w) == []
        good = copy_of_rank_1(new)
        assert await told(w) == [str(good)]
        w.node._disk = Disk(w.session.send, w.config.kept, w.config.begun_again)
        assert await told(w) == [str(good)]
        assert late.exists(), "it is there, and does not count"

    in_world(test)


def test_journals_of_one_that_has_been_replaced_are_given_back_and_of_no_other(in_world: Any) -> None:
    """Also copies of them, and what another agent has made before this one."""

    async def test(w: World) -> None:
        await begun(w, several(0, 2))
        await begun(w, several(1, 3), f"{w.config.node}.2")
        journals = w.config.journals
        (journals / f"{w.config.node}.7").mkdir()
        w.node.agent.copies._copies["train-0:cc.1"] = JournalCopy()
        for worker in (WORKER, f"{w.config.node}.2", f"{w.config.node}.7", "train-0:cc.1"):
            w.node.agent.ordered(msg.ForgetJournals(worker))
        assert {p.name for p in journals.iterdir()} == {WORKER, f"{w.config.node}.2"}, "both live"
        assert w.node.agent.copies._copies == {}
        w._shims[0].close()
        await w.until(lambda: w.session.of(msg.WorkerExited))
        w.node.agent.ordered(msg.ForgetJournals(WORKER))
        assert {p.name for p in journals.iterdir()} == {f"{w.config.node}.2"}
        w.node.agent.ordered(msg.FetchJournal(WORKER))
        assert w.session.of(msg.JournalContent) == [msg.JournalContent(WORKER)]

    in_world(test)
