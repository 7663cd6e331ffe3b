"""Tells the dashboard beside this controller, over a unix socket in their pod, what each job tells. See `protocol.kube.job_feed`.

The listener is told from what jobs keep anyway, as fast as it reads: nothing waits for it here, and a slow one misses events.
Where people may ask for something on its page, it asks in their names over the same socket: `dashboard_asks`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from torchrelay.controller.kube.cluster.pods import JobKey
from torchrelay.controller.kube.dashboard_asks import READ_ONLY, Answerer, hear
from torchrelay.controller.kube.jobs.ledger import Ledger
from torchrelay.controller.kube.jobs.run import JobRun
from torchrelay.controller.serving.event_log import EventLog
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.dashboard_asks import LONGEST_ASK_BYTES, Ask
from torchrelay.protocol.kube.job_feed import (
    STILL_THERE_S,
    AskAnswered,
    Barred,
    BarredSubject,
    FeedLeader,
    JobGone,
    JobPlaces,
    JobSeen,
    JobTold,
    pack,
)
from torchrelay.protocol.messages import JobEvent

log = logging.getLogger(__name__)

LOOK_S = 1.0
EVENTS_AT_ONCE = 50
"""Then others have the loop."""
WAITING_BYTES = 256 << 10
"""So much waits for the listener at most."""


@dataclass
class _Followed:
    """How far a listener has been told of one job."""

    log: EventLog
    place: int = 0
    passed: dict[str, JobEvent] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)


class FeedListener:
    """What one listener has been told so far."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._followed: dict[JobKey, _Followed] = {}
        self._leading: FeedLeader | None = None
        self._said_s = 0.0
        self._barred: Barred | None = None
        self._clock = clock

    def news(self, leading: FeedLeader, ledger: Ledger | None) -> Iterator[bytes]:
        """Yield what is new, some lines at a time: others may do something between them."""
        if leading != self._leading or self._clock() - self._said_s >= STILL_THERE_S:
            self._said_s = self._clock()
            self._leading = leading
            yield pack(leading)
        if ledger is None:
            return
        if (barred := _barred(ledger)) != self._barred:
            self._barred = barred
            yield pack(barred)
        runs = dict(ledger.runs)
        for key in [k for k in self._followed if k not in runs]:
            yield from self._rest(key, self._followed.pop(key))
            yield pack(JobGone(*key))
        for key, run in runs.items():
            yield from self._of(key, run, ledger)

    def _of(self, key: JobKey, run: JobRun, ledger: Ledger) -> Iterator[bytes]:
        known = self._followed.get(key)
        if known is None or known.log is not run.relay.told:
            if known is not None:  # it begins again, or another one has its name
                yield from self._rest(key, known)
            known = self._followed[key] = _Followed(run.relay.told)
            yield pack(_seen(key, run, ledger))
        if (places := run.core.job.machines) != known.places:
            known.places = dict(places)
            yield pack(JobPlaces(*key, known.places))
        yield from self._rest(key, known)

    def _rest(self, key: JobKey, known: _Followed) -> Iterator[bytes]:
        while True:
            events, known.place = known.log.since(known.place, EVENTS_AT_ONCE)
            if events:
                yield b"".join(pack(JobTold(*key, event)) for event in events)
            if len(events) < EVENTS_AT_ONCE:
                break
        for name, event in known.log.newest.items():
            if known.passed.get(name) is not event:
                known.passed[name] = event
                yield pack(JobTold(*key, event))


def _seen(key: JobKey, run: JobRun, ledger: Ledger) -> JobSeen:
    owners = (pod.annotations.get(kube.OWNER, "") for pod in ledger.pods_of(key))
    taken_over = run.trained_before and run.restart is None
    return JobSeen(*key, run.told_as, next(filter(None, owners), ""), taken_over)


def _barred(ledger: Ledger) -> Barred:
    held = sorted(ledger.quarantines().items())
    return Barred(tuple(BarredSubject(name, q.node, q.device, q.reason) for name, q in held))


class EventFeed:
    """`leader()`: the pod that has the lease, as far as it is known. Tells of jobs once `lead` was called."""

    def __init__(self, pod: str, leader: Callable[[], str]) -> None:
        self._pod = pod
        self._leader = leader
        self._ledger: Ledger | None = None
        self._answerer: Answerer | None = None
        self._listening: asyncio.Task[None] | None = None

    def lead(self, ledger: Ledger, answerer: Answerer | None = None) -> None:
        """Jobs are looked after here from now on. `answerer`: does what the listener asks for; None: nothing may be asked for."""
        self._ledger = ledger
        self._answerer = answerer

    def end(self) -> None:
        """Nobody is told anything any more."""
        if self._listening is not None:
            self._listening.cancel()

    async def tell(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Tell and hear one listener until it is gone, or another one has come: there is one dashboard."""
        if self._listening is not None:
            self._listening.cancel()
        self._listening = asyncio.current_task()
        writer.transport.set_write_buffer_limits(high=WAITING_BYTES)
        listener = FeedListener()
        hearing = asyncio.ensure_future(hear(reader, self._answer, lambda answered: writer.write(pack(answered))))
        try:
            while True:
                for lines in listener.news(FeedLeader(self._pod, self._leader()), self._ledger):
                    writer.write(lines)
                    await writer.drain()
                    await asyncio.sleep(0)
                await asyncio.sleep(LOOK_S)
        except OSError:
            pass  # it has ended, and comes again
        except asyncio.CancelledError:
            pass  # another one listens, or nobody does any more; asyncio would print a traceback
        except Exception:  # whatever it is, no job must notice
            log.exception("the dashboard is not told any more, until it asks again")
        finally:
            hearing.cancel()
            writer.close()

    async def _answer(self, ask: Ask) -> AskAnswered:
        return await self._answerer(ask) if self._answerer is not None else AskAnswered(ask.number, False, READ_ONLY)


@asynccontextmanager
async def feed_served(path: str, feed: EventFeed) -> AsyncIterator[None]:
    """Serve the feed at `path`, for this user alone; nowhere if that is empty, or cannot be: the controller works without it."""
    if not path:
        yield
        return
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of the container before this one
        server = await asyncio.start_unix_server(feed.tell, path, limit=LONGEST_ASK_BYTES)
        os.chmod(path, 0o600)
    except OSError as e:
        log.error("no dashboard can be told what happens: %s: %s", path, e)
        yield
        return
    try:
        yield
    finally:
        server.close()
        feed.end()
