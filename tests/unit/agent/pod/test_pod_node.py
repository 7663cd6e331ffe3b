"""The agent beside a process that it did not start, over a real socket; the controller is played by the test."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from support.pod_node_world import LAUNCH, TOKEN, WITHIN_S, WORKER, Shim, World

from torchrelay.agent.pod.config import PodConfig
from torchrelay.protocol import messages as msg
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.names import NO_RANK


def test_a_process_is_told_what_the_controller_says(in_world: Any) -> None:
    async def test(w: World) -> None:
        shim = await w.shim()
        assert isinstance(await shim.hear(), msg.Ack)
        await w.until(lambda: w.session.of(msg.WorkerStarted))
        assert w.session.of(msg.WorkerStarted) == [msg.WorkerStarted(WORKER, 1, os.getpid(), LAUNCH)]
        w.order(msg.Begin(WORKER, "", True))
        folders = str(w.config.journals / WORKER), str(w.config.kept / "0")
        assert await shim.hear() == msg.Begin(WORKER, folders[0], True, kept=folders[1])

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
        w.node.agent.ordered(msg.Fence(WORKER))
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
        check = msg.ReplicaCheck(3, {"weight": "aa"})
        w.node.agent.ordered(msg.Inherits(WORKER, (check,)))
        w.node.agent.ordered(msg.Inherits("train-9:gone.1", (check,)))
        w.node.agent.ordered(msg.TellAgain())
        assert w.session.of(msg.FromWorker) == [msg.FromWorker(WORKER, r) for r in (msg.Warm("2.13"), check)]
        (info,) = w.node.hello().workers
        assert (info.rank, info.generation, info.protected, info.launch) == (0, 4, True, {"RANK": "0"})

    in_world(test)


def test_a_spare_ends_with_the_job_and_the_agent_after_it(in_world: Any) -> None:
    async def test(w: World) -> None:
        shim = await w.shim(spare=True)
        await shim.hear()
        await w.until(lambda: w.session.of(msg.WorkerStarted))
        assert w.session.of(msg.WorkerStarted)[0].rank == NO_RANK
        w.node.agent.ordered(msg.StopJob(0, 15, "all ranks are done"))
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
        w.node.agent.ordered(msg.StopJob(1, 15, "a rank failed"))
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
        w.node._processes[WORKER].pid = 0  # type: ignore[index]  # a worker's name
        w.node.agent.ordered(msg.RestartWorkers("from step 5"))
        assert await shim.hear() == msg.EndNow(75)
        assert w.session.renewed == 1
        assert w.node.hello().workers == ()
        shim.close()
        again = await w.shim()
        await again.hear()
        await w.until(lambda: w.node.hello().workers)
        (info,) = w.node.hello().workers
        assert (info.worker, info.generation) == ("train-1:0a1b2c3d.2", -1)

    in_world(test)


def test_a_process_that_waits_to_begin_need_not_end_for_that(in_world: Any) -> None:
    async def test(w: World) -> None:
        shim = await w.shim()
        await shim.hear()
        await w.until(lambda: w.session.of(msg.WorkerStarted))
        w.node.agent.ordered(msg.RestartWorkers("from step 5"))
        assert [i.worker for i in w.node.hello().workers] == [WORKER]
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
        (info,) = w.node.hello().workers
        assert (info.rank, info.launch) == (0, env)

    in_world(test)


def test_the_folder_of_checkpoints_is_looked_through_by_order(in_world: Any, tmp_path: Path) -> None:
    async def test(w: World) -> None:
        (tmp_path / "manifest.json").write_bytes(b"{}")
        w.node.agent.ordered(msg.FetchCheckpoint(str(tmp_path)))
        w.node.agent.ordered(msg.FindCheckpoints(str(tmp_path / "nothing")))
        await w.until(lambda: w.session.of(msg.CheckpointsFound) and len(w.session.of(msg.CheckpointFile)) == 2)
        assert w.session.of(msg.CheckpointFile)[0].data == b"{}"
        assert w.session.of(msg.CheckpointsFound)[0].found == ()

    in_world(test)


AGAIN = msg.Hello("train-1:0a1b2c3d.4", TOKEN, 1, "3", False, LAUNCH, True, 5, 4, True)


def test_a_process_that_an_agent_before_this_one_knew_keeps_its_name_and_goes_on(in_world: Any) -> None:
    async def test(w: World) -> None:
        await w.until(w.config.socket.exists)
        shim = Shim(*await asyncio.open_unix_connection(str(w.config.socket)))
        shim.say(AGAIN)
        assert isinstance(await shim.hear(), msg.Ack)
        await w.until(lambda: w.node.hello().workers)
        (info,) = w.node.hello().workers
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
