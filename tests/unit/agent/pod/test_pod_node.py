"""The agent beside a process that it did not start, over a real socket; the controller is played by the test."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from torchrelay.agent.pod.config import PodConfig
from torchrelay.agent.pod.node import PodNode
from torchrelay.agent.pod.shims import PodShims
from torchrelay.agent.shim_server import ShimEvents
from torchrelay.protocol import messages as msg
from torchrelay.protocol import wire
from torchrelay.protocol.errors import RefusedError, UserError
from torchrelay.protocol.kept import WHOLE, KeptParts, open_slot, slot_folder, write_parts
from torchrelay.protocol.names import NO_RANK

LAUNCH = {"RANK": "1", "WORLD_SIZE": "2"}
WORKER = "train-1:0a1b2c3d.1"
WITHIN_S = 10.0


class FakeSession:
    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.connected, self.away_s = False, 0.0
        self.renewed = 0

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def renew(self) -> None:
        self.renewed += 1

    async def run(self) -> None:
        await asyncio.Event().wait()

    def close(self) -> None:
        pass

    def of(self, kind: type) -> list[Any]:
        return [m for m in self.sent if isinstance(m, kind)]


class Shim:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def say(self, *reports: Any) -> None:
        self._writer.write(b"".join(map(wire.encode, reports)))

    async def hear(self) -> Any:
        head = await asyncio.wait_for(self._reader.readexactly(wire.HEAD_BYTES), WITHIN_S)
        data = await asyncio.wait_for(self._reader.readexactly(wire.frame_length(head)), WITHIN_S)
        return wire.decode(data, wire.ORDERS)

    def close(self) -> None:
        self._writer.close()


class World:
    def __init__(self, folder: Path) -> None:
        self.config = PodConfig(
            "team",
            "train-1",
            "0a1b2c3d-9",
            "127.0.0.1",
            "x:1",
            "x:2",
            b"",
            folder / "run",
            folder / "token",
            0.1,
            0.1,
            kept=folder / "kept",
        )
        self.config.run_folder.mkdir()
        self.node = PodNode(self.config)
        self.session = self.node._session = FakeSession()  # type: ignore[assignment]
        self.task = asyncio.create_task(self.node.run())
        self._shims: list[Shim] = []

    async def shim(self, spare: bool = False, launch: dict[str, str] | None = None, token: str = "0a1b2c3d-9") -> Shim:
        await self.until(self.config.socket.exists)
        shim = Shim(*await asyncio.open_unix_connection(str(self.config.socket)))
        self._shims.append(shim)
        shim.say(msg.Hello("train-1", token, 1, "3", spare, LAUNCH if launch is None else launch))
        return shim

    async def until(self, true: Callable[[], Any]) -> None:
        async def look() -> None:
            while not true():  # noqa: ASYNC110 - what the agent does tells nobody
                await asyncio.sleep(0.01)

        await asyncio.wait_for(look(), WITHIN_S)

    def order(self, order: Any, worker: str = WORKER) -> None:
        self.node._ordered(msg.ToWorker(worker, order))

    async def close(self) -> None:
        for shim in self._shims:
            shim.close()
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


@pytest.fixture
def in_world(tmp_path: Path) -> Callable[[Callable[[World], Coroutine[Any, Any, None]]], None]:
    def run(test: Callable[[World], Coroutine[Any, Any, None]]) -> None:
        async def go() -> None:
            world = World(tmp_path)
            try:
                await test(world)
            finally:
                await world.close()

        asyncio.run(go())

    return run


def test_a_process_is_told_what_the_controller_says(in_world: Any) -> None:
    async def test(w: World) -> None:
        shim = await w.shim()
        assert await shim.hear() == msg.Ack()
        await w.until(lambda: w.session.of(msg.WorkerStarted))
        assert w.session.of(msg.WorkerStarted) == [msg.WorkerStarted(WORKER, 1, os.getpid(), LAUNCH)]
        w.order(msg.Begin(WORKER, "", True))
        assert await shim.hear() == msg.Begin(WORKER, str(w.config.journals / WORKER), True)

    in_world(test)


def test_a_controller_that_is_new_to_it_does_not_let_it_begin_again(in_world: Any) -> None:
    async def test(w: World) -> None:
        shim = await w.shim()
        await shim.hear()
        await w.until(lambda: w.session.of(msg.WorkerStarted))
        w.order(msg.Begin(WORKER, "", False))
        await shim.hear()
        w.order(msg.Begin(WORKER, "", False))
        w.order(msg.MayFinish())
        assert await shim.hear() == msg.MayFinish()

    in_world(test)


def test_what_takes_no_part_in_a_job_goes_on_without_the_controller(in_world: Any) -> None:
    async def test(w: World) -> None:
        shim = await w.shim(launch={})
        await shim.hear()
        begin = await shim.hear()
        assert isinstance(begin, msg.Begin)
        assert not begin.spare
        assert w.session.of(msg.WorkerStarted) == []

    in_world(test)


def test_the_end_of_the_connection_is_the_end_of_the_process_and_the_next_one_has_another_name(in_world: Any) -> None:
    async def test(w: World) -> None:
        first = await w.shim()
        await first.hear()
        first.close()
        await w.until(lambda: w.session.of(msg.WorkerExited))
        assert w.session.of(msg.WorkerExited) == [msg.WorkerExited(WORKER, 137, 9, False)]
        second = await w.shim()
        await second.hear()
        await w.until(lambda: len(w.session.of(msg.WorkerStarted)) == 2)
        assert w.session.of(msg.WorkerStarted)[1].worker == "train-1:0a1b2c3d.2"

    in_world(test)


def test_a_process_with_a_token_of_another_pod_is_turned_away(in_world: Any) -> None:
    async def test(w: World) -> None:
        shim = await w.shim(token="other")
        with pytest.raises(asyncio.IncompleteReadError):
            await shim.hear()
        assert w.session.of(msg.WorkerStarted) == []

    in_world(test)


def test_a_fenced_process_is_told_to_end_and_its_end_says_so(in_world: Any) -> None:
    async def test(w: World) -> None:
        shim = await w.shim(launch={**LAUNCH})
        await shim.hear()
        await w.until(lambda: w.session.of(msg.WorkerStarted))
        process = next(iter(w.node._processes.values()))
        process.pid = 0  # it is this test
        w.node._ordered(msg.Fence(WORKER))
        assert await shim.hear() == msg.EndNow(137)
        shim.close()
        await w.until(lambda: w.session.of(msg.WorkerExited))
        assert w.session.of(msg.WorkerExited)[0].fenced

    in_world(test)


def test_what_it_said_is_told_again_to_a_new_controller(in_world: Any) -> None:
    async def test(w: World) -> None:
        shim = await w.shim(spare=True)
        await shim.hear()
        await w.until(lambda: w.session.of(msg.WorkerStarted))
        w.order(msg.Begin(WORKER, "", True))
        shim.say(msg.Warm("2.13"))
        w.order(msg.Assign(4, 0, 2, {"RANK": "0"}))
        await w.until(lambda: msg.FromWorker(WORKER, msg.Warm("2.13")) in w.session.sent)
        w.session.sent.clear()
        w.node._ordered(msg.TellAgain())
        assert w.session.of(msg.FromWorker) == [msg.FromWorker(WORKER, msg.Warm("2.13"))]
        (info,) = w.node._hello().workers
        assert (info.rank, info.generation, info.protected, info.launch) == (0, 4, True, {"RANK": "0"})

    in_world(test)


def test_a_spare_ends_with_the_job_and_the_agent_after_it(in_world: Any) -> None:
    async def test(w: World) -> None:
        shim = await w.shim(spare=True)
        await shim.hear()
        await w.until(lambda: w.session.of(msg.WorkerStarted))
        assert w.session.of(msg.WorkerStarted)[0].rank == NO_RANK
        w.node._ordered(msg.StopJob(0, 15, "all ranks are done"))
        assert await shim.hear() == msg.EndNow(0)
        await asyncio.wait_for(w.task, WITHIN_S)

    in_world(test)


def test_a_script_that_is_not_protected_is_left_alone_when_the_job_ends(in_world: Any) -> None:
    async def test(w: World) -> None:
        shim = await w.shim()
        await shim.hear()
        await w.until(lambda: w.session.of(msg.WorkerStarted))
        w.order(msg.Begin(WORKER, "", False))
        await shim.hear()
        w.node._ordered(msg.StopJob(1, 15, "a rank failed"))
        await asyncio.wait_for(w.task, WITHIN_S)
        with pytest.raises(asyncio.IncompleteReadError):
            await shim.hear()

    in_world(test)


def test_without_a_controller_who_is_done_may_leave(in_world: Any) -> None:
    async def test(w: World) -> None:
        shim = await w.shim()
        await shim.hear()
        await w.until(lambda: w.session.of(msg.WorkerStarted))
        shim.say(msg.Finishing(40))
        w.session.away_s = w.config.orphan_s + 1.0
        assert await shim.hear() == msg.MayFinish()
        shim.close()
        await asyncio.wait_for(w.task, WITHIN_S)

    in_world(test)


def test_the_environment_of_the_webhook_is_needed_as_a_whole() -> None:
    names = ("NAMESPACE", "POD", "POD_UID", "POD_IP", "CONTROLLER", "ENROLL", "CA")
    environ = {f"TORCHRELAY_{name}": name.lower() for name in names}
    assert PodConfig.from_environ(environ).node == "pod:pod_uid"
    for name in environ:
        with pytest.raises(UserError, match=name):
            PodConfig.from_environ({k: v for k, v in environ.items() if k != name})


def test_a_job_that_begins_again_ends_the_process_and_knows_it_no_more(in_world: Any) -> None:
    async def test(w: World) -> None:
        shim = await w.shim()
        await shim.hear()
        await w.until(lambda: w.session.of(msg.WorkerStarted))
        w.order(msg.Begin(WORKER, "", False))
        await shim.hear()
        w.node._processes[WORKER].pid = 0  # type: ignore[index]
        w.node._ordered(msg.RestartWorkers("from step 5"))
        assert await shim.hear() == msg.EndNow(75)
        assert w.session.renewed == 1
        assert w.node._hello().workers == ()
        shim.close()
        again = await w.shim()
        await again.hear()
        await w.until(lambda: w.node._hello().workers)
        (info,) = w.node._hello().workers
        assert (info.worker, info.generation) == ("train-1:0a1b2c3d.2", -1)

    in_world(test)


def test_a_process_that_waits_to_begin_need_not_end_for_that(in_world: Any) -> None:
    async def test(w: World) -> None:
        shim = await w.shim()
        await shim.hear()
        await w.until(lambda: w.session.of(msg.WorkerStarted))
        w.node._ordered(msg.RestartWorkers("from step 5"))
        assert [i.worker for i in w.node._hello().workers] == [WORKER]
        w.order(msg.Begin(WORKER, "", True))
        assert (await shim.hear()).spare

    in_world(test)


def test_a_parked_process_can_be_told_to_run_the_script_from_its_beginning(in_world: Any) -> None:
    async def test(w: World) -> None:
        shim = await w.shim()
        await shim.hear()
        await w.until(lambda: w.session.of(msg.WorkerStarted))
        w.order(msg.Begin(WORKER, "", True))
        await shim.hear()
        env = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"}
        w.order(msg.Begin(WORKER, "", False, env))
        assert (await shim.hear()).env == env
        (info,) = w.node._hello().workers
        assert (info.rank, info.launch) == (0, env)

    in_world(test)


def test_the_folder_of_checkpoints_is_looked_through_by_order(in_world: Any, tmp_path: Path) -> None:
    async def test(w: World) -> None:
        (tmp_path / "manifest.json").write_bytes(b"{}")
        w.node._ordered(msg.FetchCheckpoint(str(tmp_path)))
        w.node._ordered(msg.FindCheckpoints(str(tmp_path / "nothing")))
        await w.until(lambda: w.session.of(msg.CheckpointsFound) and len(w.session.of(msg.CheckpointFile)) == 2)
        assert w.session.of(msg.CheckpointFile)[0].data == b"{}"
        assert w.session.of(msg.CheckpointsFound)[0].found == ()

    in_world(test)


AGAIN = msg.Hello("train-1:0a1b2c3d.4", "0a1b2c3d-9", 1, "3", False, LAUNCH, True, 5, 4, True)


def test_a_process_that_an_agent_before_this_one_knew_keeps_its_name_and_goes_on(in_world: Any) -> None:
    async def test(w: World) -> None:
        await w.until(w.config.socket.exists)
        shim = Shim(*await asyncio.open_unix_connection(str(w.config.socket)))
        shim.say(AGAIN)
        assert await shim.hear() == msg.Ack()
        await w.until(lambda: w.node._hello().workers)
        (info,) = w.node._hello().workers
        assert info == msg.WorkerInfo(AGAIN.worker, 1, os.getpid(), LAUNCH, 5, True, 4)
        assert w.session.of(msg.WorkerStarted) == []
        w.order(msg.MayFinish(), AGAIN.worker)
        assert await shim.hear() == msg.MayFinish()
        shim.close()
        await w.until(lambda: w.session.of(msg.WorkerExited))
        late = Shim(*await asyncio.open_unix_connection(str(w.config.socket)))
        late.say(AGAIN)
        with pytest.raises(asyncio.IncompleteReadError):
            await late.hear()
        late.close()

    in_world(test)


def test_a_process_of_another_pod_does_not_get_in_by_a_name(in_world: Any) -> None:
    async def test(w: World) -> None:
        await w.until(w.config.socket.exists)
        shim = Shim(*await asyncio.open_unix_connection(str(w.config.socket)))
        shim.say(dataclasses.replace(AGAIN, worker="train-0:ffffffff.4"))
        with pytest.raises(asyncio.IncompleteReadError):
            await shim.hear()
        shim.close()

    in_world(test)


def test_a_launcher_is_no_process_of_the_job_and_several_processes_are_told_why(in_world: Any) -> None:
    async def test(w: World) -> None:
        asked: list[Any] = []
        w.node._launchers.connected = lambda worker, hello: asked.append(hello.launcher)  # type: ignore[method-assign]
        await w.until(w.config.socket.exists)
        for hello in (
            msg.Hello("train-1", "0a1b2c3d-9", 1, "3", False, launcher=True),
            msg.Hello("train-1", "0a1b2c3d-9", 1, "3", False, {**LAUNCH, "LOCAL_WORLD_SIZE": "2"}),
        ):
            shim = Shim(*await asyncio.open_unix_connection(str(w.config.socket)))
            w._shims.append(shim)
            shim.say(hello)
            assert await shim.hear() == msg.Ack()
        rank = await w.shim(launch={**LAUNCH, "LOCAL_WORLD_SIZE": "1"})
        assert await rank.hear() == msg.Ack()
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
        assert [await s.hear() for s in shims] == [msg.Ack()] * 2
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
        assert await again.hear() == msg.Ack()
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
            shim.say(msg.Hello(name, w.config.uid, 1, "3", spare, launch, True, 1, 0, is_protected))
            assert await shim.hear() == msg.Ack()
        await w.until(lambda: len(w.node._hello().workers) == 2)
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
        w.node._ordered(msg.StopJob(75, 15, "no spare is left"))
        await asyncio.wait_for(w.task, WITHIN_S)
        assert not protected.exists()
        assert over.read_text() == "75"

    in_world(test)


def test_a_process_that_has_not_begun_ends_with_a_job_that_is_over(in_world: Any) -> None:
    async def test(w: World) -> None:
        shim = await w.shim()
        await shim.hear()
        await w.until(lambda: w.session.of(msg.WorkerStarted))
        w.node._ordered(msg.StopJob(0, 15, "all ranks are done"))
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
        w.node._ordered(msg.Fence(WORKER, again=True))
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
        w.node._ordered(msg.StartWorker(1))
        assert w.session.of(msg.LateWorker)[-1].pid == 0, "no other one comes"

    in_world(test)


def test_copies_are_told_and_forgotten_when_the_job_begins_again(in_world: Any) -> None:
    async def test(w: World) -> None:
        slot = slot_folder(w.config.kept, 1, 6, 3)
        open_slot(slot)
        write_parts(slot, KeptParts(6, b"journal", b"set-up", "layout"))
        (slot / WHOLE).write_text("{}")
        await w.shim()
        await w.until(lambda: w.session.of(msg.WorkerStarted))
        w.node._ordered(msg.FetchKept())
        await w.until(lambda: w.session.of(msg.KeptCopies) and w.session.of(msg.KeptCopies)[-1].last)
        told, last = w.session.of(msg.KeptCopies)
        assert told == msg.KeptCopies((msg.KeptCopy(1, 6, str(slot), b"journal", b"set-up", "layout"),), last=False)
        assert last == msg.KeptCopies()
        w.node._ordered(msg.RestartWorkers("again"))
        assert slot.exists(), "the process that makes them may live still"
        w._shims[0].close()
        await w.shim()
        await w.until(lambda: not slot.exists())

    in_world(test)
