"""Attacks on the controller of a cluster: by strangers at its ports, and by pods with certificates."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from attack import strangers
from attack.attacked import STATE_S, Attacked, hello_of, pod_named, told_once
from attack.draw import Draw
from attack.process import Controlled
from attack.real_job import RealJob
from attack.tally import Tally
from support.kube_cluster import SECRET

from torchrelay.protocol import messages as msg
from torchrelay.protocol import relay_pb2, relay_pb2_grpc
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.security.pod_tls import anonymous_channel
from torchrelay.protocol.security.tls import Credentials
from torchrelay.protocol.transport.convert import wrap
from torchrelay.protocol.words.positions import StandingPosition

PLANNED, LOSS, SAVE, ROLL_BACK = "planned", "loss", "save", "roll-back"
STATES = {
    PLANNED: ("Begin", "Protect", "Assign", "QuiesceAt", "QuiesceDecided", "Serve", "Plan", "Rebuild", "Commit"),
    SAVE: ("QuiesceAt", "QuiesceDecided", "SaveCheckpoint"),
    ROLL_BACK: ("FetchKept", "Assign"),
    LOSS: ("Interrupt", "FetchJournal", "Assign", "Serve", "Plan", "Rebuild", "Commit"),
}
"""Of a job and its migrations, by the order that is given then."""
ASKS = {SAVE: {kube.CHECKPOINT_DIR: "/c"}, ROLL_BACK: {kube.BUDDY_EVERY: "1"}}
"""By kind, annotations of the pods."""
Attack = Callable[[], Coroutine[Any, Any, None]]
SETTLE_S = 80.0
"""Connections that do nothing are closed after a minute."""
MOST_GROWTH_BYTES = 64 << 20
"""Of what the controller holds once everybody who attacked is gone: fragments of what was there, and counts."""
MOST_PEAK_BYTES = 768 << 20
"""Of messages of the largest size, several at once."""
MOST_DESCRIPTORS = 12
MOVES_LEAST = 3
JOBS_AT_ONCE = 4
"""Jobs that are attacked at the same time, each in a state of its own."""


@dataclass(frozen=True)
class Extent:
    """How much of everything."""

    burst: int
    flood: int
    connections: int
    huge: int
    epochs: int
    """Of the real job."""
    states: Mapping[str, tuple[str, ...]]


FIRST = Extent(burst=20, flood=0, connections=40, huge=1, epochs=0, states={PLANNED: ("Plan",), LOSS: ("Plan",)})
"""For what is made once and is large: what is held is compared with what was held after it."""
SHORT = Extent(
    burst=60,
    flood=1500,
    connections=100,
    huge=2,
    epochs=60,
    states={
        PLANNED: ("QuiesceDecided", "Rebuild"),
        SAVE: ("SaveCheckpoint",),
        ROLL_BACK: ("Assign",),
        LOSS: ("Interrupt", "Assign", "Plan"),
    },
)
LONG = Extent(burst=1500, flood=60_000, connections=1200, huge=24, epochs=400, states=STATES)


class ClusterAttack:
    def __init__(self, controlled: Controlled, folder: Path, extent: Extent, seed: int, tally: Tally) -> None:
        self._controlled, self._folder, self._extent, self._seed, self._tally = controlled, folder, extent, seed, tally
        self._faults: set[str] = set()

    def _draw(self, what: str) -> Draw:
        return Draw(f"{self._seed}/{what}")

    async def run(self) -> None:
        """The first round is there for all that is made once; what is held is compared after it. A real job trains meanwhile."""
        draw = self._draw("real")
        async with RealJob(self._controlled, self._folder, self._extent.epochs, draw, self._tally) as real:
            await self._round("first", FIRST)
            before = await self._settled(jobs=2)
            began_s = time.monotonic()
            strikes = asyncio.create_task(real.strike())
            await self._round("main", self._extent)
            strikes.cancel()
            await asyncio.gather(strikes, return_exceptions=True)
            await real.end()
        after = await self._settled(before["descriptors"] + MOST_DESCRIPTORS)
        self._judge(before, after, time.monotonic() - began_s)

    async def _round(self, name: str, extent: Extent) -> None:
        for wave in self._waves(name, extent):
            began, began_s = await self._controlled.ask("state"), time.monotonic()
            try:
                await asyncio.gather(*(attack() for _, attack in wave))
            finally:
                told = ", ".join(what for what, _ in wave)
                await self._lives(f"{name}: {told}", began, time.monotonic() - began_s)

    def _waves(self, name: str, extent: Extent) -> list[list[tuple[str, Attack]]]:
        """Return what is done at the same time, one wave after the other. What takes much memory is alone."""
        of, states = functools.partial, [(kind, state) for kind, of_kind in extent.states.items() for state in of_kind]
        in_states: list[tuple[str, Attack]] = [
            (f"{kind}/{state}", of(self._state, name, state, kind, extent)) for kind, state in states
        ]

        def own(*attacks: Callable[[str, Extent], Coroutine[Any, Any, None]]) -> list[tuple[str, Attack]]:
            return [(attack.__name__.strip("_"), of(attack, name, extent)) for attack in attacks]

        waves = [
            self._at_ports(name, extent),
            *(in_states[n : n + JOBS_AT_ONCE] for n in range(0, len(in_states), JOBS_AT_ONCE)),
            own(self._huge),
        ]
        if extent is not FIRST:
            waves += [
                own(self._positions, self._enrolment, self._identities, self._bytes, self._annotations),
                own(self._flood, self._streams),
            ]
        return waves

    def _at_ports(self, name: str, extent: Extent) -> list[tuple[str, Attack]]:
        found: list[tuple[str, Attack]] = []
        for port_name, port in self._controlled.ports.items():
            draw, of = self._draw(f"{name}/{port_name}"), functools.partial
            found.append((f"garbage/{port_name}", of(strangers.garbage, port, draw, self._tally, extent.connections)))
            found.append((f"half-open/{port_name}", of(self._half_open, port, draw, extent)))
            if port_name != "ready":
                found.append((f"tls/{port_name}", of(strangers.bad_tls, port, self._tally, extent.connections)))
        return found

    async def _half_open(self, port: int, draw: Draw, extent: Extent) -> None:
        await strangers.half_open(
            port, draw, self._tally, extent.connections, lambda: asyncio.ensure_future(asyncio.sleep(0.5))
        )

    async def _enrolment(self, name: str, extent: Extent) -> None:
        draw, kind = self._draw(f"{name}/enrolment"), "request for a certificate"
        authority = Credentials.from_secret(SECRET, "attacker").authority
        async with anonymous_channel(f"127.0.0.1:{self._controlled.ports['enrol']}", authority) as channel:
            stub = relay_pb2_grpc.EnrolmentStub(channel)

            async def one(number: int) -> None:
                size = draw.chance.choice((0, 10, 2000, 20_000, 40_000, 200_000))
                asked = relay_pb2.EnrolRequest(token="t" * size, signing_request=draw.garbage())
                try:
                    await stub.Enrol(asked, timeout=10)
                    self._tally.fail("a certificate was given for nothing")
                except grpc.aio.AioRpcError as e:
                    self._tally.refuse(kind, f"{e.code().name}: {e.details()}")

            await asyncio.gather(*(one(n) for n in range(extent.connections)))
        self._tally.sent(kind, extent.connections)

    async def _identities(self, name: str, extent: Extent) -> None:
        """Foreign certificates, and pods that speak for others, say nothing, or something else first."""
        kind, foreign = "stream that is none of ours", Credentials.from_secret(b"f" * 32, "foreign")
        async with Attacked(self._controlled, f"{name}-who", self._draw(f"{name}/who"), self._tally) as job:
            pod = job.pods[0]
            firsts = {
                "a foreign authority": (wrap(relay_pb2.FromAgent, hello_of(pod)), foreign),
                "another pod": (wrap(relay_pb2.FromAgent, hello_of(job.pods[1])), None),
                "a pod of another namespace": (
                    wrap(relay_pb2.FromAgent, hello_of(pod_named("honest-0", "uid-0001", "honest"))),
                    None,
                ),
                "no hello": (wrap(relay_pb2.FromAgent, msg.Progress(())), None),
                "an empty message": (relay_pb2.FromAgent(), None),
                "another's worker": (wrap(relay_pb2.FromAgent, hello_of(pod, worker=job.agents[1].worker)), None),
            }
            for what, (first, authority) in firsts.items():
                async with job.channel(pod, authority) as channel:
                    self._tally.sent(kind)
                    try:
                        async for _ in relay_pb2_grpc.RelayStub(channel).Attach(told_once(first), timeout=5):
                            self._tally.fail(f"a stream of {what} was taken")
                            break
                    except grpc.aio.AioRpcError as e:
                        if e.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                            self._tally.fail(f"a stream of {what} was neither taken nor refused")
                        self._tally.refuse(kind, f"{what}: {e.code().name}")
            async with job.channel(pod) as channel:
                stub = relay_pb2_grpc.RelayStub(channel)
                for call, asked in (
                    (stub.Status, relay_pb2.Empty()),
                    (stub.Migrate, relay_pb2.MigrateRequest(rank=0)),
                    (stub.Stop, relay_pb2.StopRequest(signal=9)),
                    (stub.Clear, relay_pb2.ClearRequest()),
                    (stub.Lead, relay_pb2.LeadRequest()),
                ):
                    self._tally.sent("command at the port of a cluster")
                    try:
                        await call(asked, timeout=5)
                        self._tally.fail(f"{type(asked).__name__} was answered in a cluster")
                    except grpc.aio.AioRpcError as e:
                        self._tally.refuse("command at the port of a cluster", e.code().name)

    async def _state(self, name: str, state: str, kind: str, extent: Extent) -> None:
        """A job that reaches the state of a migration, and says absurd things in it."""
        job_name = f"{name}-{state.lower()}-{kind}"
        draw = self._draw(job_name)
        asks = ASKS.get(kind, {})
        async with Attacked(self._controlled, job_name, draw, self._tally, state, extent.burst, asks) as job:
            level = "partly" if kind == ROLL_BACK else "protected"  # no rank's tensors are held by another one
            protected = await job.until(
                lambda: job.latest["status"].get("protection") == level or job.latest["failure"] or job.reached,
                STATE_S,
            )
            if not protected:
                self._tally.fail(f"{job_name} was never protected: {job.latest['status']}")
                return
            if kind == PLANNED:
                await self._controlled.ask("wish", job=job_name, rank=0)
            elif kind == SAVE:
                await self._controlled.ask("save", job=job_name)
            else:
                job.agents[0].die()
            await job.until(lambda: job.reached, STATE_S)
            self._tally.sent(f"state {kind}/{state}")
            if not job.reached:
                self._tally.fail(f"{job_name} has never come to {state}: {job.latest}")
            await job.until(lambda: job.latest["failure"] or job.latest["phase"] == "over", 1.0)
            if job.latest["failure"]:
                self._faults.add(f"{job_name}: {job.latest['failure']}")

    async def _positions(self, name: str, extent: Extent) -> None:
        """After a loss the other rank stands at each place where one can stand; the decision has to be made on that."""
        await asyncio.gather(*(self._position(name, position) for position in StandingPosition))

    async def _position(self, name: str, position: StandingPosition) -> None:
        job_name = f"{name}-at-{position.value}"
        async with Attacked(self._controlled, job_name, self._draw(job_name), self._tally) as job:
            job.stands = position
            if not await job.until(lambda: job.latest["status"].get("protection") == "protected", STATE_S):
                self._tally.fail(f"{job_name} was never protected: {job.latest['status']}")
                return
            before = job.latest["decided_on"].get(position.value, 0)
            job.agents[0].die()
            if not await job.until(lambda: job.latest["decided_on"].get(position.value, 0) > before, STATE_S):
                self._tally.fail(f"{job_name}: nothing was decided on a rank that stands there: {job.latest}")

    async def _flood(self, name: str, extent: Extent) -> None:
        """Messages of every kind without an end, as fast as the connection takes them."""
        async with Attacked(self._controlled, f"{name}-flood", self._draw(f"{name}/flood"), self._tally) as job:
            await job.until(lambda: job.latest["status"].get("protection") == "protected", STATE_S)
            for number in range(extent.flood):
                job.agents[number % len(job.agents)].send(job.one(0))
                if number % 500 == 0:
                    await asyncio.sleep(0)
            await job.until(lambda: not any(a._queue.qsize() for a in job.agents), 10.0)

    async def _huge(self, name: str, extent: Extent) -> None:
        """Journals as large as a message may be, again and again, and lists of a million."""
        async with Attacked(self._controlled, f"{name}-huge", self._draw(f"{name}/huge"), self._tally) as job:
            await job.until(lambda: job.latest["status"].get("protection") == "protected", STATE_S)
            for number in range(extent.huge):
                agent = job.agents[number % len(job.agents)]
                step = number if number % 2 else job.play.step
                content = msg.JournalContent(agent.worker, {step: bytes(24 << 20)}, {step: bytes(8 << 20)}, b"")
                agent.send(content)
                many = tuple(f"model.{n}" for n in range(200_000))
                agent.say(msg.ReplicaCheck(number, dict.fromkeys(many[:100_000], "aa"), many))
                agent.send(
                    msg.WorkerStarted(f"{agent.pod.agent}.{number}", -1, 1, {f"K{n}": "v" * 1000 for n in range(9000)})
                )
                self._tally.sent("huge message", 3)
            await job.until(lambda: not any(a._queue.qsize() for a in job.agents), 20.0)

    async def _streams(self, name: str, extent: Extent) -> None:
        """Many streams of one pod, and orders that nobody takes."""
        async with Attacked(self._controlled, f"{name}-streams", self._draw(f"{name}/streams"), self._tally) as job:
            await job.until(lambda: job.latest["status"].get("protection") == "protected", STATE_S)
            pod = job.pods[1]

            async def stream(number: int) -> None:
                self._tally.sent("stream of the same pod")
                with contextlib.suppress(grpc.aio.AioRpcError):
                    async with job.channel(pod) as channel:
                        call = relay_pb2_grpc.RelayStub(channel).Attach(
                            told_once(wrap(relay_pb2.FromAgent, hello_of(pod))), timeout=1.5
                        )
                        async for _ in call:
                            break
                        await asyncio.sleep(0.5)  # and takes nothing

            for _ in range(0, extent.connections // 5, 10):
                await asyncio.gather(*(stream(n) for n in range(10)))

    async def _bytes(self, name: str, extent: Extent) -> None:
        """Protocol buffers that are damaged, on a stream that was taken."""
        draw = self._draw(f"{name}/bytes")
        async with Attacked(self._controlled, f"{name}-bytes", draw, self._tally) as job:
            await job.until(lambda: job.latest["status"].get("protection") == "protected", STATE_S)
            pod = job.pods[1]
            hello = wrap(relay_pb2.FromAgent, hello_of(pod)).SerializeToString()
            for _ in range(extent.connections // 3):
                async with job.channel(pod) as channel:
                    attach = channel.stream_stream("/torchrelay.v1.Relay/Attach")

                    async def told() -> Any:
                        yield hello
                        for _ in range(5):
                            whole = job.draw.packed(relay_pb2.FromAgent, job.known())[1].SerializeToString()
                            yield draw.damaged(whole)

                    self._tally.sent("damaged protocol buffer", 5)
                    try:
                        async for _ in attach(told(), timeout=1.0):
                            break
                    except grpc.aio.AioRpcError as e:
                        self._tally.refuse("damaged protocol buffer", e.code().name)

    async def _annotations(self, name: str, extent: Extent) -> None:
        """Pods with annotations, labels and claims that make no sense."""
        draw = self._draw(f"{name}/annotations")
        names = [
            v for k, v in vars(kube).items() if k.isupper() and isinstance(v, str) and v.startswith(f"{kube.GROUP}/")
        ]
        odd = ("", "-1", "999999999999999999999", "NaN", "{}", "[1", "../..", "\0", "foo", "x" * 5000, "true")
        for number in range(max(3, extent.connections // 50)):
            job_name = f"{name}-odd-{number}"
            given = {
                n: draw.chance.choice(odd) for n in draw.chance.sample(names, draw.chance.randrange(1, len(names)))
            }
            await self._controlled.ask("pods", job=job_name, size=2, annotations=given)
            self._tally.sent("pods with absurd annotations", 2)
            await asyncio.sleep(0.2)  # for the mirror to see them
            await self._controlled.ask("remove", job=job_name)

    async def _lives(self, what: str, began: dict[str, Any], took_s: float) -> None:
        now = await self._controlled.ask("state")
        if not now["lives"]:
            self._tally.fail(f"{what}: the controller has ended: {now['ended']}")
        if now["failed"]:
            self._tally.fail(f"{what}: {now['failed']}")
        if now["still_s"] > 10:
            self._tally.fail(f"{what}: the loop has stood still for {now['still_s']:.1f} s")
        peak = now["peak_bytes"] - began["bytes"]
        if peak > MOST_PEAK_BYTES:
            self._tally.fail(f"{what}: {peak >> 20} MiB more than before, for a while")
        new = {text for text in now["faults"] if text not in began["faults"]}
        for text in new:
            self._tally.fail(f"{what}: a fault of ours, contained: {text}")
        kept = (now["bytes"] - began["bytes"]) >> 10
        held = f"{now['descriptors']} descriptors, {now['tasks']} tasks"
        print(
            f"{what} ({took_s:.1f} s): +{peak >> 20} MiB at most, {kept} KiB kept, {held}, {now['moved']} moves",
            flush=True,
        )

    async def _settled(self, descriptors: int = 1 << 20, jobs: int = 1) -> dict[str, Any]:
        """Once everything that was there for those who attacked is gone, or that has had its time."""
        end_s = time.monotonic() + SETTLE_S
        while True:
            state: dict[str, Any] = await self._controlled.ask("state")
            if (state["jobs"] <= jobs and state["descriptors"] <= descriptors) or time.monotonic() > end_s:
                return state
            await asyncio.sleep(0.2)

    def _judge(self, before: dict[str, Any], after: dict[str, Any], took_s: float) -> None:
        grown, moved = after["bytes"] - before["bytes"], after["moved"] - before["moved"]
        print(
            f"{took_s:.0f} s; {before['bytes'] >> 10} KiB before, {after['bytes'] >> 10} KiB after; descriptors "
            f"{before['descriptors']} and {after['descriptors']}; {moved} moves of the other job, the slowest took "
            f"{after['slowest_s']} s",
            flush=True,
        )
        if after["jobs"] > 1:
            self._tally.fail(f"{after['jobs']} jobs are remembered, and one is there")
        if grown > MOST_GROWTH_BYTES:
            self._tally.fail(f"the controller holds {grown >> 20} MiB more than before")
        if after["descriptors"] > before["descriptors"] + MOST_DESCRIPTORS:
            self._tally.fail(f"{before['descriptors']} descriptors have become {after['descriptors']}")
        if moved < MOVES_LEAST:
            self._tally.fail(f"only {moved} moves of the other job meanwhile")


async def attack_cluster(folder: Path, extent: Extent, seed: int, tally: Tally) -> None:
    controlled = await Controlled.start(folder / "controller.log")
    try:
        await ClusterAttack(controlled, folder, extent, seed, tally).run()
    finally:
        await controlled.close()
