"""Controllers over gRPC that answer the commands about a running job as they are told to."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc

from torchrelay.cli.folders import folder
from torchrelay.protocol import events, relay_pb2_grpc
from torchrelay.protocol.messages import (
    AddSparesReply,
    ClearReply,
    Empty,
    JobStatus,
    MigrateReply,
    QuarantineReply,
    RankStatus,
    SpareStatus,
)
from torchrelay.protocol.security.tls import Credentials, make_server
from torchrelay.protocol.transport import convert
from torchrelay.protocol.words.phases import DOWNTIME_ROWS

SECRET = b"0123456789abcdef0123456789abcdef"
STATUS = JobStatus(
    run_id="ab",
    world_size=1,
    generation=0,
    spares_warm=1,
    spares_total=1,
    protection="protected",
    protection_reason="armed",
    steps_per_s=1.5,
    migrations_done=0,
    last_migration="",
    ranks=(RankStatus(0, "n0.w0", "n0", 17, 3, "body", "running"),),
)


class FakeController(relay_pb2_grpc.RelayServicer):
    """`moved`: the rank that the migration is about in the end."""

    def __init__(self, outcome: str = "committed", accepted: bool = True, moved: int = 0) -> None:
        self.outcome, self.accepted, self.moved = outcome, accepted, moved
        self.stopped: list[int] = []
        self.asked_by: list[str] = []

    async def Status(self, request: Any, context: Any) -> Any:
        return convert.to_proto(STATUS)

    async def Migrate(self, request: Any, context: Any) -> Any:
        return convert.to_proto(MigrateReply(self.accepted, "m1", f"rank {request.rank}: {request.reason}"))

    async def Clear(self, request: Any, context: Any) -> Any:
        return convert.to_proto(ClearReply(request.subject == "GPU-1", f"{request.subject}: {request.reason}"))

    async def Stop(self, request: Any, context: Any) -> Any:
        self.stopped.append(request.signal)
        self.asked_by.append(request.by)
        return convert.to_proto(Empty())

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        told: list[events.Occurrence] = [
            events.MigrationStarted("m1", "planned", 0, "fan", 1),
            events.PhaseChanged("m1", "prepare", 0.0),
            events.PhaseChanged("m1", "quiesce", 1.25),
            events.MigrationFinished(
                migration="m1",
                kind="planned",
                outcome=self.outcome,
                rank=0,
                spare="n0.s0",
                ranks=(self.moved,),
                spares=("n0.s0",),
                steps_redone=0,
                downtime_s=dict.fromkeys(DOWNTIME_ROWS, 0.1) | {"checkpoint": 0.0},
                beside_s=1.25,
                transferred_bytes=1,
                generation=1,
                reason="the joiner died",
            ),
        ]
        for number, event in enumerate(told):
            yield convert.to_proto(events.to_job_event(event, float(number)))


class DrainedController(FakeController):
    """Two ranks, on n0 and n1. The one of n1 leaves with the finished migration, or stays if `stays` says why."""

    def __init__(self, stays: str = "", known: bool = True, until_over: bool = True, refused: str = "") -> None:
        super().__init__()
        self.refused = refused
        self.stays, self.known, self.until_over = stays, known, until_over
        self.is_moved = False

    async def Status(self, request: Any, context: Any) -> Any:
        node = "n0" if self.is_moved else "n1"
        ranks = (*STATUS.ranks, RankStatus(1, f"{node}.w1", node, 18, 3, "body", "running"))
        spares = {"spares_warm": 0, "spares_reason": self.stays} if self.stays else {}
        return convert.to_proto(dataclasses.replace(STATUS, world_size=2, ranks=ranks, quarantine=("n1: x",), **spares))

    async def Quarantine(self, request: Any, context: Any) -> Any:
        if self.refused:
            return convert.to_proto(QuarantineReply(True, f"rank 1 stays: {self.refused}", (), (1,)))
        return convert.to_proto(QuarantineReply(self.known, f"{request.subject}: {request.reason}", (1,)))

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        earlier = events.MoveNotMade("", 0, "the day before", "there was no spare")
        yield convert.to_proto(events.to_job_event(earlier, -0.5))
        if request.until_now:
            return
        async for event in super().Watch(request, context):
            self.is_moved = event.name == "migration_finished" and not self.stays
            yield event
        if self.until_over:
            yield convert.to_proto(events.to_job_event(events.JobFinished(143, "stopped by SIGTERM"), 9.0))
        else:
            await asyncio.Event().wait()


class SparingController(FakeController):
    """One spare, and one more that gets ready, unless `why` says why not."""

    def __init__(self, accepted: bool = True, why: str = "") -> None:
        super().__init__(accepted=accepted)
        self.why, self.is_ready = why, False

    async def Status(self, request: Any, context: Any) -> Any:
        spares = [SpareStatus("n0.s0", "n0", 21, "ready", 180.0)]
        if self.is_ready:
            spares.append(SpareStatus("n0.s1", "n0", 22, "ready", 2.0))
        facts = {"spares": tuple(spares), "spares_warm": len(spares), "spares_wanted": 1 + self.is_ready}
        return convert.to_proto(dataclasses.replace(STATUS, **facts))

    async def AddSpares(self, request: Any, context: Any) -> Any:
        return convert.to_proto(AddSparesReply(self.accepted, "1 on n0", 2))

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.is_ready = not self.why
        told = events.SpareDropped("n0.s1", self.why) if self.why else events.SpareMade("n0.s1", "n0", "")
        for number, event in enumerate((told, events.SparesChanged(2, 2, 0, ""))):
            yield convert.to_proto(events.to_job_event(event, float(number)))


class LeavingController(FakeController):
    """Its server stops while it is asked."""

    async def Migrate(self, request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "going away")


class EndingController(FakeController):
    """The job ends while a migration is under way."""

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield convert.to_proto(events.to_job_event(events.MigrationStarted("m1", "planned", 0, "fan", 1), 0.0))


class SavingController(FakeController):
    """Saves a checkpoint, or not, as `outcome` says."""

    async def Checkpoint(self, request: Any, context: Any) -> Any:
        again = self.outcome == "again"
        return convert.to_proto(MigrateReply(self.accepted, "m3" if self.accepted else "", request.reason, again))

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        told: list[events.Occurrence] = [events.MigrationStarted("m3", "save", -1, "why", 1)]
        if self.outcome == "saved":
            told.append(events.CheckpointSaved("/jit/ab-step7-asked", 7, "torchrelay run --resume /jit/ab-step7-asked"))
        if self.outcome != "over":
            stood = {"checkpoint": 0.5}
            reason = "the checkpoint of step 7 is in /jit/ab-step7-asked" if self.outcome == "saved" else "no room"
            told.append(
                events.MigrationFinished("m3", "save", self.outcome, -1, "", (), (), 0, stood, 0.0, 0, 1, reason)
            )
        for number, event in enumerate(told):
            yield convert.to_proto(events.to_job_event(event, float(number)))


def with_controller(
    controller: FakeController, state: Path, act: Callable[[int], Awaitable[int]], run_id: str = "ab"
) -> int:
    async def serve() -> int:
        server = make_server()
        relay_pb2_grpc.add_RelayServicer_to_server(controller, server)
        port = server.add_secure_port("127.0.0.1:0", Credentials.from_secret(SECRET, "controller").server())
        await server.start()
        path = folder.make_run_folder(state, run_id)
        folder.write_secret(path, SECRET)
        here = folder.Process.find(os.getpid())
        assert here is not None
        folder.write_run(path, folder.KnownRun(run_id, run_id, "127.0.0.1", port, ("run", "train.py"), (here,)))
        try:
            return await act(port)
        finally:
            folder.remove_run(path)
            await server.stop(None)

    return asyncio.run(serve())
