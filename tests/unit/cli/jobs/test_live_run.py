"""A running job as a dashboard hears of it."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.kept_runs import head, progress, write

from torchrelay.cli.folders import folder
from torchrelay.cli.jobs.live_run import LiveRun
from torchrelay.protocol import events, relay_pb2_grpc
from torchrelay.protocol.messages import ClearReply, JobStatus, MigrateReply, RankStatus
from torchrelay.protocol.security.tls import Credentials, make_server
from torchrelay.protocol.transport import convert

SECRET = b"0123456789abcdef0123456789abcdef"
BEGAN = events.JobStarted("ab", 1, 1, ("n0",), ("n0.w0",))
LOST = events.MigrationStarted("m1", "unplanned", 0, "it was killed", 1)


class TellingController(relay_pb2_grpc.RelayServicer):
    """Tells all that it has told whenever somebody comes; `told` may grow meanwhile. `stays`: the stream does not end then."""

    def __init__(self, stays: bool = True) -> None:
        self.stays = stays
        self.told: list[events.Occurrence] = [BEGAN, LOST]
        self.streams = 0

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.streams += 1
        for number, event in enumerate(self.told):
            yield convert.to_proto(events.to_job_event(event, 100.0 + number // 2))
        if self.stays:
            await asyncio.Event().wait()

    async def Status(self, request: Any, context: Any) -> Any:
        ranks = (RankStatus(0, "n0.s0", "n7", 17, 3, "body", "running"),)
        return convert.to_proto(JobStatus("ab", 1, 0, 1, 1, "protected", "", 1.5, 0, "", ranks))

    async def Migrate(self, request: Any, context: Any) -> Any:
        return convert.to_proto(MigrateReply(False, "", f"rank {request.rank}: {request.reason}"))

    async def Clear(self, request: Any, context: Any) -> Any:
        return convert.to_proto(ClearReply(not request.check, f"{request.subject}: {request.reason}", request.check))


async def until(condition: Callable[[], bool]) -> None:
    async def look() -> None:
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.01)

    await asyncio.wait_for(look(), 30)


def with_run(
    state: Path,
    controller: TellingController,
    act: Callable[[LiveRun, Callable[[], Awaitable[None]]], Awaitable[None]],
) -> None:
    """`act` is given the run, and what ends its controller."""

    async def serve() -> None:
        server = make_server()
        relay_pb2_grpc.add_RelayServicer_to_server(controller, server)
        port = server.add_secure_port("127.0.0.1:0", Credentials.from_secret(SECRET, "controller").server())
        await server.start()
        path = folder.make_run_folder(state, "ab")
        folder.write_secret(path, SECRET)
        here = folder.Process.find(os.getpid())
        assert here is not None
        command = ("run", "--name", "my run", "--notify", "https://hooks/of-mine", "train.py")
        of_user = {"name": "my run", "working_folder": "/data", "started_s": 1_700_000_000.0}
        folder.write_run(path, folder.KnownRun("ab", "ab", "127.0.0.1", port, command, (here,), **of_user))
        live = LiveRun(state, folder.choose_run(state, "ab"))
        following = asyncio.ensure_future(live.follow())
        try:
            await act(live, lambda: server.stop(None))
        finally:
            folder.remove_run(path)
            following.cancel()
            await asyncio.wait((following,))
            await server.stop(None)

    asyncio.run(serve())


def test_each_event_is_taken_once_though_a_new_stream_tells_all_again(tmp_path: Path) -> None:
    controller = TellingController(stays=False)

    async def act(live: LiveRun, _: Any) -> None:
        await until(lambda: controller.streams >= 2)
        controller.told += [
            events.Decision("m1", "spare n0.s0 takes over"),
            events.Decision("m1", "told at the same time"),
        ]
        await until(lambda: controller.streams >= 4)
        record = live.seen().record
        assert [h.what for h in record.migrations["m1"].heard] == controller.told[2:]

    with_run(tmp_path, controller, act)


def test_who_looks_late_knows_what_is_kept_and_what_is_told_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller does not keep each step, so without them all of the time would be set-up."""
    monkeypatch.setenv("TORCHRELAY_HISTORY_DIR", str(tmp_path / "history"))
    told = [events.to_job_event(BEGAN, 10.0), progress(20.0, 0), progress(60.0, 80), progress(100.0, 160)]
    write(tmp_path / "history", told, head("ab"))

    async def act(live: LiveRun, _: Any) -> None:
        await until(lambda: bool(live.seen().record.migrations))  # which the controller tells behind them
        assert live.seen().record.useful_time(100.0).share == pytest.approx(80 / 90)

    controller = TellingController()
    controller.told = [BEGAN, BEGAN, LOST]
    with_run(tmp_path / "state", controller, act)


def test_where_ranks_are_comes_from_the_status(tmp_path: Path) -> None:
    async def act(live: LiveRun, _: Any) -> None:
        await until(lambda: live.seen().status is not None)
        status = live.seen().status
        assert status is not None
        assert status.ranks[0].node == "n7"
        assert live.seen().command == "torchrelay run --name 'my run' --notify URL train.py"
        assert live.seen().when.startswith("my run, began 2023-11-")
        assert live.seen().when.endswith(", in /data")

    with_run(tmp_path, TellingController(), act)


def test_what_is_asked_for_says_where_it_was_asked(tmp_path: Path) -> None:
    async def act(live: LiveRun, _: Any) -> None:
        await until(lambda: live.seen().actions)
        moved = await live.migrate(0, "fan", "")
        assert (moved.done, moved.message) == (False, "rank 0: fan (asked for on the dashboard)")
        assert (await live.clear("GPU-1", "new", False, "")).done
        assert (await live.clear("GPU-1", "new", True, "")).message == "GPU-1: new (asked for on the dashboard)"

    with_run(tmp_path, TellingController(), act)


def test_a_job_whose_controller_is_gone_is_called_so_and_cannot_be_asked(tmp_path: Path) -> None:
    async def act(live: LiveRun, stop: Callable[[], Awaitable[None]]) -> None:
        await until(lambda: live.seen().actions)
        await stop()
        await until(lambda: live.seen().unreachable != "" and not live.seen().actions)
        assert live.seen().unreachable.startswith("it runs without its controller")
        assert (await live.migrate(0, "fan", "")).message == "the job has no controller that could be asked"

    with_run(tmp_path, TellingController(), act)


def test_another_controller_is_found_where_it_is(tmp_path: Path) -> None:
    async def act(live: LiveRun, stop: Callable[[], Awaitable[None]]) -> None:
        await until(lambda: live.seen().actions)
        await stop()
        await until(lambda: "connect" in live.seen().unreachable)  # it was tried anew, at the old address
        second, server = TellingController(), make_server()
        relay_pb2_grpc.add_RelayServicer_to_server(second, server)
        port = server.add_secure_port("127.0.0.1:0", Credentials.from_secret(SECRET, "controller").server())
        await server.start()
        known = folder.choose_run(tmp_path, "ab")
        folder.write_run(tmp_path / "ab", dataclasses.replace(known, controller_port=port))
        try:
            await until(lambda: live.seen().actions and second.streams > 0)
        finally:
            await server.stop(None)

    with_run(tmp_path, TellingController(), act)


def test_a_job_whose_command_is_gone_without_a_word_is_called_so(tmp_path: Path) -> None:
    async def act(live: LiveRun, stop_controller: Callable[[], Awaitable[None]]) -> None:
        await until(lambda: live.seen().actions)
        folder.remove_run(tmp_path / "ab")
        await stop_controller()
        await until(lambda: "nobody has told how" in live.seen().unreachable)

    with_run(tmp_path, TellingController(), act)


@pytest.mark.parametrize("exit_code", [0, 1])
def test_nobody_listens_to_a_job_that_is_over(tmp_path: Path, exit_code: int) -> None:
    controller = TellingController(stays=False)
    controller.told.append(events.JobFinished(exit_code, ""))

    async def act(live: LiveRun, _: Any) -> None:
        await asyncio.wait_for(live.follow(), 30)
        assert live.seen().record.ended is not None
        assert not live.seen().actions

    with_run(tmp_path, controller, act)
